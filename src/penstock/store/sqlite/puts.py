"""A put with addresses or groups: decided by core, carried out in one step."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.address import plan_put
from penstock.core.task import Entry, Record
from penstock.store.base import tube_full
from penstock.store.sqlite.step import Step, read_counts


def put_planned(step: Step, entries: Sequence[Entry]) -> list[Record]:
    """Store entries, or give new content to those that are there; the task of each, in order."""
    step.last_id()  # NoSuchTube before anything else is said of the tube
    before = total_of(step) if step.tube.capacity is not None else 0
    held = step.links.holders(entries)
    there = [record for record in held if step.record(record.id) is not None]  # else it was past its ttl
    plan = plan_put(entries, {record.address: record for record in there if record.address is not None})
    for entry in plan.fresh:
        step.links.must_take(entry)
    total = before - (len(held) - len(there))
    if step.tube.capacity is not None and total + len(plan.fresh) > step.tube.capacity:
        raise tube_full(step.tube, total, len(plan.fresh))
    fresh = step.store(plan.fresh)
    kept = {record.id: record for record in there}
    for id, entry in plan.replaced.items():
        current = step.record(id)  # read anew: a fresh one may have demoted it
        assert current is not None
        kept[id] = step.replace(current, entry)
    return [fresh[place] if place >= 0 else kept[-place] for place in plan.places]


def total_of(step: Step) -> int:
    """How many tasks the tube holds, whatever they do."""
    counts = read_counts(step)
    return counts.ready + counts.taken + counts.delayed + counts.buried
