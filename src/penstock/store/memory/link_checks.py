"""Cross-checks of addresses and groups in memory, against the records themselves; and repair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.task import UNSTARTED
from penstock.store.base import Finding
from penstock.store.memory.step import Step
from penstock.store.memory.tube import TubeState


def check_links(state: TubeState, repair: bool, step: Step) -> Iterator[Finding]:
    """Findings in the order in which they must be mended."""
    yield from _addresses(state, repair)
    members: dict[int, set[int]] = defaultdict(set)
    for record in state.records.values():
        if record.group_no is not None:
            members[record.group_no].add(record.id)
    for group in list(state.links.groups.by_no.values()):
        yield from _group(state, group, members[group.no], repair, step)


def _addresses(state: TubeState, repair: bool) -> Iterator[Finding]:
    true = {record.address: record.id for record in state.records.values() if record.address is not None}
    for address, id in sorted(true.items() ^ state.links.by_address.items()):
        what = f"address {address} is that of another task, or of none"
        yield Finding(state.tube.name, id, what, "repair believes the tasks")
    if repair:
        state.links.by_address = true


def _group(state: TubeState, group: Group, members: set[int], repair: bool, step: Step) -> Iterator[Finding]:
    groups = state.links.groups
    problems = list(_problems(state, group, members))
    for what in problems:
        yield Finding(state.tube.name, None, f"group {group.name}: {what}", "repair counts it anew")
    if repair and problems and group.state not in rules.OVER:
        groups.members[group.no] = members
        group.left = len(members)
        group.moving = group.state != rules.OPEN
        groups.turned(group)
        state.links.end(group, step)


def _problems(state: TubeState, group: Group, members: set[int]) -> Iterator[str]:
    groups = state.links.groups
    if group.left != len(members) or members != groups.members.get(group.no, set()):
        yield f"says {group.left} tasks are left, there are {len(members)}"
    if group.state in (rules.STARTED, rules.CANCELLING) and not members:
        yield "should have ended"
    unstarted = sum(state.records[id].state == UNSTARTED for id in members)
    waiting = {rules.STARTED: unstarted, rules.CANCELLING: len(members)}.get(group.state, 0)
    if waiting and group.no not in groups.moving:
        yield f"{waiting} tasks do not follow its record"
