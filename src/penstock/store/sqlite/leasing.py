"""The two steps that every task goes through, in as few statements as a batch allows: leased, and acked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.lifecycle import Move
from penstock.core.task import NO_UTUBE, Record
from penstock.store.base import GONE, Event
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step

_encode = msgspec.json.Encoder().encode


def lease(step: Step, query: str, count: int, session: int, top: int) -> list[Record]:
    """Lease up to count tasks in order."""
    # Where each hand-out moves its micro-queue behind the others, the next one is known only after it.
    batch = 1 if step.tube.fair and step.tube.utube_limit > 1 else count
    leased: list[Record] = []
    while len(leased) < count:
        values = (step.tube.no, top, step.now, min(batch, count - len(leased)), session)
        records = [Record(*row) for row in step.execute(query, values)]
        _hand_out(step, records, session)
        leased += records
        if len(records) < batch or batch == count:
            break
    if leased:
        no = step.tube.no
        step.effects.events += [Event(no, "take", record) for record in leased]
        step.execute(Q.bump_take, (step.tube.no, len(leased)))
    return leased


def _hand_out(step: Step, records: list[Record], session: int) -> None:
    if len(records) == 1:
        step.execute(Q.lease, (step.key | records[0].id, step.now, session))
    elif records:
        step.execute(Q.lease_many, (_keys(step, records), step.now, session))
    if step.tube.kind.per_utube:
        for record in records:
            step.served(record.utube or NO_UTUBE)


def ack_plain(step: Step, moves: Sequence[Move]) -> list[Record | None] | None:
    """Ack tasks that are tied to nothing, without reading them; None for those that take another look.

    None instead of the list where these are not acks of a sort that this can do.
    """
    if not step.tube.kind.leased:
        return _ack_named(step, moves)
    if not _are_acks(moves):
        return None
    if len(moves) == 1:
        return [GONE] if _ack_one(step, moves[0]) else None
    gone: dict[int, str | None] = {}
    by_guard: dict[tuple[int | None, int | None], list[Move]] = {}
    for move in moves:
        by_guard.setdefault((move.session, move.lease), []).append(move)
    for (session, lease), some in by_guard.items():
        gone.update(step.execute(Q.ack_many, (_keys(step, some), session, lease, step.now)))
    step.acked(gone)
    if step.tube.kind.per_utube:
        for utube in gone.values():
            step.settled(utube or NO_UTUBE)
    return [GONE if move.id in gone else None for move in moves]


def _ack_one(step: Step, move: Move) -> bool:
    values = (step.key | move.id, move.session, move.lease, step.now)
    if not step.tube.kind.per_utube:
        step.execute(Q.ack_one, values)
        if not step.db.changes():
            return False
    else:
        row = step.execute(Q.ack_laned, values).fetchone()
        if row is None:
            return False
        step.settled(row[0] or NO_UTUBE)
    step.acked((move.id,))
    return True


def _ack_named(step: Step, moves: Sequence[Move]) -> list[Record | None] | None:
    """The same of messages, which nobody owns."""
    names = [move.name for move in moves if move.verb == "ack"]
    if len(set(names)) < len(moves):
        return None
    gone: dict[str | None, int] = dict(step.execute(Q.ack_named, (step.tube.no, _encode(names).decode())))
    step.acked(gone.values())
    return [msgspec.structs.replace(GONE, address=name) if name in gone else None for name in names]


def _are_acks(moves: Sequence[Move]) -> bool:
    for move in moves:
        if move.verb != "ack" or move.result is not None or not 0 < move.id < 1 << ID_BITS:
            return False
    return len(moves) == 1 or len({move.id for move in moves}) == len(moves)


def _keys(step: Step, tasks: Sequence[Record | Move]) -> str:
    """The keys of these for json_each: one statement, whatever their number."""
    return _encode([step.key | task.id for task in tasks]).decode()
