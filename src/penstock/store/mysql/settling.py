"""Moves on their way to the procedures that carry them out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec
from pymysql.converters import escape_string

from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.store.mysql.answers import sql

_encode = msgspec.json.Encoder().encode


def settling(tube: Tube, moves: Sequence[Move], now: int | None) -> str:
    """The call for these moves. What most are, acks by one session without results, is done with all at once."""
    holder = moves[0].session
    alike = (
        not tube.kind.per_utube
        and all(move.verb == "ack" and move.session == holder and move.result is None for move in moves)
        and len({move.shown for move in moves}) == len(moves)
    )
    if not tube.kind.leased:
        named = escape_string(_encode([(move.verb, move.name) for move in moves]).decode())
        return f"CALL penstock_{'ack' if alike else 'settle'}_named({tube.no}, '{named}', {sql(now)})"
    if alike:
        pairs = _encode([(move.id, move.lease) for move in moves]).decode()
        return f"CALL penstock_ack({tube.no}, {sql(holder)}, '{pairs}', {sql(now)})"
    listed = escape_string(_encode([_row(move) for move in moves]).decode())
    return f"CALL penstock_settle({tube.no}, '{listed}', {sql(now)})"


def _row(move: Move) -> tuple[object, ...]:
    result = None if move.result is None else b64encode(move.result).decode()
    return (
        move.verb, move.id, move.session, move.lease, move.extra, move.reason, int(move.unstarted), result, move.code,
        move.progress,
    )  # fmt: skip
