"""Moves on their way to the procedure that carries them out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec
from pymysql.converters import escape_string

from penstock.core.lifecycle import Move

_encode = msgspec.json.Encoder().encode


def listed(moves: Sequence[Move]) -> str:
    """The moves as a literal of SQL."""
    return f"'{escape_string(_encode([_row(move) for move in moves]).decode())}'"


def _row(move: Move) -> tuple[object, ...]:
    result = None if move.result is None else b64encode(move.result).decode()
    return (
        move.verb, move.id, move.session, move.lease, move.extra, move.reason, int(move.unstarted), result, move.code,
    )  # fmt: skip
