"""Puts that depend on what is there: tasks with an address or a group, and elements of round tubes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.address import addresses, plan_put, replaced
from penstock.core.group import Group
from penstock.core.lifecycle import expired
from penstock.core.refusals import tube_full
from penstock.core.task import Entry, Record
from penstock.engine.port import ByNames
from penstock.engine.work import Work


def put_linked(work: Work, entries: Sequence[Entry], *, guess: bool) -> list[Record]:
    """Store the entries, or give new content to the tasks that are there; the task of each entry, in order.

    With `guess`, nothing is loaded: no address is in use, and groups are not started. Conflict where that is wrong.
    """
    held = [] if guess else _holders(work, entries)
    there = [record for record in held if not (expired(record, work.now) or work.is_cancelled(record))]
    plan = plan_put(entries, {record.address: record for record in there if record.address is not None})
    leaving = [record for record in held if record not in there]
    fresh = [_in_group(work, entry, leaving, guess=guess) for entry in plan.fresh]
    _must_hold(work, len(fresh) - len(leaving), guess=guess)
    for record in leaving:
        work.remove_if_gone(record)
    for entry in fresh:
        work.put(entry)
    kept = {record.id: record for record in there}
    for id, entry in plan.replaced.items():
        kept[id] = replaced(kept[id], entry, work.now)
        work.rewrite(next(record for record in there if record.id == id), kept[id], "put")
    _, stored = work.flush()
    return [stored[place] if place >= 0 else kept[-place] for place in plan.places]


def _holders(work: Work, entries: Sequence[Entry]) -> list[Record]:
    """The tasks that hold addresses of these entries, in id order."""
    names = list(dict.fromkeys(addresses(entries)))
    return sorted(work.load(ByNames(names)), key=lambda record: record.id) if names else []


def _in_group(work: Work, entry: Entry, leaving: Sequence[Record], *, guess: bool) -> Entry:
    """The entry with the number of its group; NotFound where that has ended, or ends with those that leave."""
    if entry.group is None:
        return entry
    if entry.group_no is None:
        group = work.know_group(work.step.open_group(work.tube, entry.group))
        return replace(entry, group_no=group.no)
    if guess:
        work.know_group(Group(entry.group_no, entry.group))
        return entry
    live = rules.must_live(work.group(entry.group_no), entry.group, work.now)
    going = Counter(record.group_no for record in leaving)[live.no]
    if live.state != rules.OPEN and going and going == live.left:
        raise rules.ended(entry.group)
    return entry


def _must_hold(work: Work, more: int, *, guess: bool) -> None:
    capacity = work.tube.capacity
    if capacity is None or more <= 0 or guess:
        return  # the flush looks again, under its lock
    stored = work.step.tally(work.tube).counts.stored
    if stored + more > capacity:
        raise tube_full(work.tube, stored, more)
