"""Two sorts of put: a plain task in one statement; with addresses or groups, decided by core, in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import apsw

from penstock.core.address import plan_put
from penstock.core.entry import stands_alone
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store.refusals import tube_full
from penstock.store.sqlite.connection import Connection, Transaction
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step, read_counts


def put_one(
    tube: Tube, entry: Entry, connection: Connection, transaction: Transaction, now: int | None
) -> Record | None:
    """Store one task that nothing else depends on; None where that needs a step, or a step must say what is wrong.

    `now` None: SQLite's clock, which is the host's, to the millisecond.
    """
    if not stands_alone(tube, entry):
        return None
    first, values = _values(tube, entry, now)
    return _put(first, values, entry, entry.payload, connection, transaction)


def plain_put(
    tube: Tube, entry: Entry, connection: Connection, transaction: Transaction
) -> Callable[[bytes], Record | None] | None:
    """As put_one, of puts that differ in their data: what is the same for all of them is found out once."""
    if not stands_alone(tube, entry):
        return None
    first, values = _values(tube, entry, None)
    return lambda payload: _put(first, values, entry, payload, connection, transaction)


def _values(tube: Tube, entry: Entry, now: int | None) -> tuple[int, tuple[apsw.SQLiteValue, ...]]:
    """The tube's first key, and what `put_one` is given before the payload."""
    first = tube.no << ID_BITS
    return first, (
        tube.no, first + (1 << ID_BITS), now, entry.rank1.base, entry.rank2.base, entry.pri, entry.ttl, entry.ttr,
        entry.max_attempts, entry.callback,
    )  # fmt: skip


def _put(
    first: int, values: tuple[apsw.SQLiteValue, ...], entry: Entry, payload: bytes, connection: Connection,
    transaction: Transaction,
) -> Record | None:  # fmt: skip
    row = connection.at_once(transaction, Q.put_one, (*values, payload))
    if row is None:
        return None
    key, created = row
    expires = None if entry.ttl is None else created + entry.ttl
    return Record(
        key - first, "r", entry.rank1.base, entry.rank2.base, entry.pri, None, 0, 0, created, None, expires, expires,
        entry.ttr, entry.max_attempts, None, None, entry.callback, payload,
    )  # fmt: skip


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
    if plan.fresh and step.tube.capacity is not None and total + len(plan.fresh) > step.tube.capacity:
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
    return read_counts(step).stored
