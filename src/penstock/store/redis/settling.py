"""Moves on their way into the settle script."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import msgspec

from penstock.core import codec
from penstock.core.lifecycle import Move
from penstock.store.redis.keys import MAX_ID

_encode = msgspec.msgpack.Encoder().encode


def pack_moves(moves: Sequence[Move]) -> list[bytes]:
    """The arguments of a settle: the moves, then the results among them."""
    results: list[bytes] = []
    return [_encode([_packed(move, results) for move in moves]), *results]


def _packed(move: Move, results: list[bytes]) -> tuple[object, ...]:
    """A move as settle reads it. A result, which may be any bytes, goes beside it."""
    id: int | str = move.id if 0 < move.id <= MAX_ID else 0  # which no task has
    if move.name is not None:
        id = move.name
    which = base64 = None
    if move.result is not None:
        results.append(move.result)
        which = len(results)
        base64 = b64encode(move.result[1:]).decode() if codec.is_raw(move.result) else None
    return (
        move.verb, id, move.session, move.lease, move.extra, move.reason, move.unstarted, move.code, which, base64,
    )  # fmt: skip
