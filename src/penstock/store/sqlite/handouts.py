"""Hand-outs without a lease in SQLite. Every function is part of a transaction of the store's."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from penstock.core.handout import clock_limit, clock_wait, clocked, delivered
from penstock.core.kind import CLOCK
from penstock.core.task import Record
from penstock.store.base import Event
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step


def hand_out(step: Step, count: int) -> list[Record]:
    """Up to count tasks, in order."""
    if step.tube.kind.hand_out == CLOCK:
        return _set_clocks(step, _ready(step, clock_limit(step.tube, step.now), count))
    return _deliver(step, _ready(step, 0, count), new=True)


def next_hand_out(step: Step) -> int | None:
    """When the first element of a round tube may be handed out; None: there is none, or it may be now."""
    rank = step.execute(Q.first_rank, (step.tube.no,)).get if step.tube.kind.hand_out == CLOCK else None
    wait = None if rank is None else clock_wait(step.tube, rank, step.now)
    return None if wait is None else step.now + wait


def recover(step: Step, count: int, elapsed: int) -> list[Record]:
    """Hand out again up to count messages that were delivered so long ago; none while the tube is paused."""
    if step.execute(Q.is_paused, (step.tube.no,)).get:
        return []
    rows = step.execute(Q.delivered, (step.tube.no, count, 0))
    old = list(takewhile(lambda record: (record.taken or 0) + elapsed <= step.now, (Record(*row) for row in rows)))
    rows.close()
    return _deliver(step, old, new=False)


def inspect(step: Step, start: int, count: int, total: int, *, pending: bool) -> list[Record]:
    """A part of the delivered or undelivered messages, read from the end that is nearer."""
    start = start + total if start < 0 else start
    if not 0 <= start < total:
        return []
    count = min(count, total - start)
    if 2 * start <= total:
        span = (step.tube.no, count, start)
        return [Record(*row) for row in step.execute(Q.delivered if pending else Q.undelivered, span)]
    span = (step.tube.no, count, total - start - count)
    rows = step.execute(Q.delivered_back if pending else Q.undelivered_back, span)
    return [Record(*row) for row in rows][::-1]


def _ready(step: Step, top: int, count: int) -> list[Record]:
    return [Record(*row) for row in step.execute(Q.ready, (step.tube.no, top, step.now, count))]


def _set_clocks(step: Step, records: Iterable[Record]) -> list[Record]:
    handed = [clocked(record, step.now) for record in records]
    if handed:
        step.db.executemany(Q.set_clock, [(step.key | record.id, step.now) for record in handed])
        step.execute(Q.bump_hand_outs, (step.tube.no, 0, len(handed)))
    return _told(step, handed)


def _deliver(step: Step, records: list[Record], *, new: bool) -> list[Record]:
    if not records:
        return []
    count = len(records)
    serial = step.execute(Q.bump_hand_outs, (step.tube.no, count if new else 0, count)).get - count
    handed = [delivered(record, step.now, serial + place) for place, record in enumerate(records, 1)]
    step.db.executemany(Q.deliver, [(step.key | record.id, record.rank1, step.now) for record in handed])
    return _told(step, handed)


def _told(step: Step, records: list[Record]) -> list[Record]:
    step.effects.events += [Event(step.tube.no, "take", record) for record in records]
    return records
