"""Moves on their way to the scripts that carry them out; plain acks that nobody listens to have one of their own."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import cast

import msgspec

from penstock.core import codec
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import GONE, Effects, Settled
from penstock.store.redis.keys import MAX_ID
from penstock.store.redis.runner import Runner

# How the script says that some of the tasks are tied to others.
_TIED = -3
_pack = struct.Struct(">HII").pack
_encode = msgspec.msgpack.Encoder().encode


def pack_moves(moves: Sequence[Move]) -> list[bytes]:
    """The arguments of settle. A result, which may be any bytes, goes beside its move."""
    results: list[bytes] = []
    return [_encode([_packed(move, results) for move in moves]), *results]


def _packed(move: Move, results: list[bytes]) -> tuple[object, ...]:
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
        move.progress,
    )  # fmt: skip


def ack_all(runner: Runner, tube: Tube, moves: Sequence[Move], now: int | None) -> Settled | None:
    """Apply these, if they are all plain acks by one session; None, and nothing was done, where they are not."""
    session = moves[0].session if moves else None
    if session is None or not runner.is_plain(tube) or not _are_acks(moves, session):
        return None
    listed = b"".join([_pack(move.id >> 32, move.id & 0xFFFFFFFF, move.lease or 0) for move in moves])
    reply = runner.on_tube("ack", tube, session.to_bytes(6, "big"), listed, now=now)
    if reply[0] == _TIED:
        return None
    _, removed, missed = cast("tuple[int, int, list[int]]", tuple(reply))
    records: list[Record | None] = [GONE] * len(moves)
    for place in missed:
        records[place - 1] = None
    return Settled(records, Effects(removed={tube.no: removed} if removed else {}))


def _are_acks(moves: Sequence[Move], session: int) -> bool:
    alike = all(
        move.verb == "ack" and move.session == session and move.result is None and 0 < move.id <= MAX_ID
        for move in moves
    )
    return alike and len({move.id for move in moves}) == len(moves)
