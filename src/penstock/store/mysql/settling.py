"""Moves on their way to the procedures that carry them out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec
from pymysql.converters import escape_string

from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.store.mysql.answers import sql
from penstock.store.mysql.wire import Rows

_encode = msgspec.json.Encoder().encode
_MAX_ID = 2**63 - 1


def settling(tube: Tube, moves: Sequence[Move], now: int | None) -> str:
    """The call for these moves. What most are, acks by one session without results, is done with all at once."""
    alike = are_acks(tube, moves)
    if not tube.kind.leased:
        named = escape_string(_encode([(move.verb, move.name) for move in moves]).decode())
        return f"CALL penstock_{'ack' if alike else 'settle'}_named({tube.no}, '{named}', {sql(now)})"
    if alike:
        return _acking(tube, moves, 0, now)
    listed = escape_string(_encode([_row(move) for move in moves]).decode())
    return f"CALL penstock_settle({tube.no}, '{listed}', {sql(now)})"


def are_acks(tube: Tube, moves: Sequence[Move]) -> bool:
    """Whether these are acks of one session, each of another task, that leave no result and free no micro-queue."""
    holder = moves[0].session
    return (
        not tube.kind.per_utube
        and all(move.verb == "ack" and move.session == holder and move.result is None for move in moves)
        and len({move.shown for move in moves}) == len(moves)
    )


def acking(tube: Tube, moves: Sequence[Move], now: int | None) -> str:
    """The call for such acks in a tube that leases, where it is enough to know which were good."""
    if len(moves) > 1:
        return _acking(tube, moves, 1, now)
    (move,) = moves
    id = move.id if 0 < move.id <= _MAX_ID else 0  # which nothing has
    return f"CALL penstock_ack_one({tube.no}, {sql(move.session)}, {id}, {sql(move.lease)}, {sql(now)})"


def _acking(tube: Tube, moves: Sequence[Move], brief: int, now: int | None) -> str:
    pairs = _encode([(move.id, move.lease) for move in moves]).decode()
    return f"CALL penstock_ack_all({tube.no}, {sql(moves[0].session)}, '{pairs}', {brief}, {sql(now)})"


def acked(moves: Sequence[Move], rows: Rows) -> set[int] | None:
    """The ids that the call of `acking` removed; None where the rows tell more than that."""
    if not rows:  # penstock_ack_one tells nothing where all is well
        return {move.id for move in moves} if len(moves) == 1 else set()
    return set(msgspec.json.decode(rows[0][2])) if rows[0][0] == "acked" else None


def _row(move: Move) -> tuple[object, ...]:
    result = None if move.result is None else b64encode(move.result).decode()
    return (
        move.verb, move.id, move.session, move.lease, move.extra, move.reason, int(move.unstarted), result, move.code,
        move.progress,
    )  # fmt: skip
