"""Puts that depend on what is there: tasks with an address or a group, and elements of round tubes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.address import addresses, plan_put, replaced
from penstock.core.group import Group
from penstock.core.refusals import tube_full
from penstock.core.task import Entry, Record
from penstock.engine.port import ByNames
from penstock.engine.work import Work


def put_linked(work: Work, entries: Sequence[Entry], *, guess: bool) -> list[Record]:
    """Store the entries, or give new content to the tasks that are there. Returns the task of each entry, in order.

    With `guess`, nothing is loaded: no address is in use, and groups are not started. Conflict where that is wrong.
    """
    held = [] if guess else _holders(work, entries)
    leaving = [record for record in held if work.is_gone(record)]
    there = {record.id: record for record in held}
    for record in leaving:
        del there[record.id]
    plan = plan_put(entries, {record.address: record for record in there.values() if record.address is not None})
    if not guess:  # what may be refused comes before the first write: a call that raises has changed nothing
        _must_live(work, plan.fresh, leaving)
        _must_hold(work, len(plan.fresh), leaving)
    ends = _ends_a_group(work, leaving, plan.fresh)
    for record in leaving:
        work.remove_if_gone(record)
    if ends:
        work.flush()  # it is over before its name is put to again; else replies come after what is put
    for name, no in _given_groups(plan.fresh):
        if guess:
            work.know_group(Group(no, name))
        else:
            work.group(no)
    opened: dict[str, int] = {}
    work.put([entry if entry.group is None else _in_group(work, entry, opened) for entry in plan.fresh])
    kept = dict(there)
    for id, entry in plan.replaced.items():
        kept[id] = replaced(there[id], entry, work.now)
        work.rewrite(there[id], kept[id], "put")
    _, stored = work.flush()
    return [stored[place] if place >= 0 else kept[-place] for place in plan.places]


def _holders(work: Work, entries: Sequence[Entry]) -> list[Record]:
    """The tasks that hold addresses of these entries, in id order."""
    names = list(dict.fromkeys(addresses(entries)))
    return sorted(work.load(ByNames(names)), key=lambda record: record.id) if names else []


def _ends_a_group(work: Work, leaving: Sequence[Record], entries: Sequence[Entry]) -> bool:
    """Whether a group that an entry names is over with those that leave."""
    if not leaving:
        return False
    going = Counter(record.group_no for record in leaving if record.group_no is not None)
    groups = [(group, count) for no, count in going.items() if (group := work.group(no)) is not None]
    over = {group.name for group, count in groups if group.state != rules.OPEN and group.left == count}
    return any(entry.group in over for entry in entries)


def _given_groups(entries: Sequence[Entry]) -> dict[tuple[str, int], None]:
    """The groups that entries are for, by name and number; each once."""
    return {(entry.group, entry.group_no): None for entry in entries if entry.group and entry.group_no is not None}


def _in_group(work: Work, entry: Entry, opened: dict[str, int]) -> Entry:
    """The entry with the number of its group, which is loaded into the work once."""
    if entry.group is None or entry.group_no is not None:
        return entry
    if entry.group not in opened:
        opened[entry.group] = work.know_group(work.step.open_group(work.tube, entry.group)).no
    return replace(entry, group_no=opened[entry.group])


def _must_live(work: Work, entries: Sequence[Entry], leaving: Sequence[Record]) -> None:
    """NotFound where an entry is for one group, and that has ended, or ends with those that leave."""
    going = Counter(record.group_no for record in leaving)
    for name, no in _given_groups(entries):
        group = rules.must_live(work.group(no), name, work.now)
        if group.state != rules.OPEN and 0 < going[no] == group.left:
            raise rules.ended(name)


def _must_hold(work: Work, more: int, leaving: Sequence[Record]) -> None:
    """TubeFull if there is no room; the flush of a server checks again, under its lock."""
    capacity = work.tube.capacity
    if capacity is not None and more > 0:
        stored = work.step.counters(work.tube).counts.stored - len(leaving)
        if stored + more > capacity:
            raise tube_full(work.tube, stored, more)
