"""Puts that depend on what is there: tasks with an address or a group, and elements of round tubes."""

from __future__ import annotations

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
    """Store the entries, or give new content to the tasks that are there; the task of each entry, in order.

    With `guess`, nothing is loaded: no address is in use, and groups are not started. Conflict where that is wrong.
    """
    there = [] if guess else work.live(_holders(work, entries))
    work.flush()  # those that are past their ttl make way first; a group may be over with them
    plan = plan_put(entries, {record.address: record for record in there if record.address is not None})
    if not guess:  # what may be refused comes before a group is begun
        _must_live(work, plan.fresh)
        _must_hold(work, len(plan.fresh))
    for entry in plan.fresh:
        work.put(_in_group(work, entry, guess=guess))
    before, kept = {record.id: record for record in there}, {record.id: record for record in there}
    for id, entry in plan.replaced.items():
        kept[id] = replaced(before[id], entry, work.now)
        work.rewrite(before[id], kept[id], "put")
    _, stored = work.flush()
    return [stored[place] if place >= 0 else kept[-place] for place in plan.places]


def _holders(work: Work, entries: Sequence[Entry]) -> list[Record]:
    """The tasks that hold addresses of these entries, in id order."""
    names = list(dict.fromkeys(addresses(entries)))
    return sorted(work.load(ByNames(names)), key=lambda record: record.id) if names else []


def _in_group(work: Work, entry: Entry, *, guess: bool) -> Entry:
    """The entry with the number of its group, which the work knows."""
    if entry.group is None:
        return entry
    if entry.group_no is None:
        group = work.know_group(work.step.open_group(work.tube, entry.group))
        return replace(entry, group_no=group.no)
    if guess:
        work.know_group(Group(entry.group_no, entry.group))
    return entry


def _must_live(work: Work, entries: Sequence[Entry]) -> None:
    """NotFound where an entry is for one group, and that has ended."""
    for entry in entries:
        if entry.group is not None and entry.group_no is not None:
            rules.must_live(work.group(entry.group_no), entry.group, work.now)


def _must_hold(work: Work, more: int) -> None:
    """TubeFull where there is no room; the flush of a server looks again, under its lock."""
    capacity = work.tube.capacity
    if capacity is not None and more > 0:
        stored = work.step.tally(work.tube).counts.stored
        if stored + more > capacity:
            raise tube_full(work.tube, stored, more)
