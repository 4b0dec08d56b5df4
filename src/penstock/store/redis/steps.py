"""Scripts that change tasks, with what they did: events, wake-ups, and replies to other tubes.

Replies are put into their tubes before anybody is notified. Calls on many tasks run several scripts of a bounded size,
so that nobody waits long for one.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from penstock.core import codec
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import ADVANCE_STEP, GONE, Effects, Settled
from penstock.store.redis.connection import Argument, Reply
from penstock.store.redis.encoding import MAX_ID, UNREADABLE
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.queries import PAGE
from penstock.store.redis.runner import Runner, read_log
from penstock.store.stepwise import stepwise

# The position of `removed` in an answer; it is -1 if a script refused.
_REMOVED = 2
# The answer of ack if some of the tasks have relations.
_RELATED = -3
_pack = struct.Struct(">HII").pack
_encode = msgspec.msgpack.Encoder().encode


class Steps:
    """Runs the scripts of one store that change tasks."""

    def __init__(self, runner: Runner, outbox: Outbox) -> None:
        self._runner = runner
        self._outbox = outbox
        #: Called with a tube where a script found bytes that penstock did not write; and how often that happened.
        self.on_unreadable: Callable[[Tube, int | None], None] | None = None
        self.unreadable = 0

    def run(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument,
        idempotent: bool = False, now: int | None = None,
    ) -> tuple[list[Record], list[Reply]]:  # fmt: skip
        """Run a script and add what it did to the effects. Returns its changes as records, and its further answer."""
        reply = self._runner.on_tube(name, tube, *arguments, idempotent=idempotent, now=now)
        return self.read(tube, reply, effects, now)

    def attempt(
        self, name: str, tube: Tube, effects: Effects, *arguments: Argument, now: int | None = None
    ) -> tuple[list[Record] | None, list[Reply]]:
        """The same for a script that may refuse: then None, and why."""
        reply = self._runner.on_tube(name, tube, *arguments, now=now)
        if reply[_REMOVED] == -1:
            return None, reply[_REMOVED + 1 :]
        return self.read(tube, reply, effects, now)

    def read(
        self, tube: Tube, reply: list[Reply], effects: Effects, now: int | None
    ) -> tuple[list[Record], list[Reply]]:
        """The same for an answer that was received already."""
        records = read_log(tube, reply, effects)
        if reply[4]:
            groups, entries = cast("tuple[list[int], list[bytes]]", tuple(cast("list[Reply]", reply[4])))
            effects.ended += [("group", tube.no, no) for no in groups]
            self._outbox.deliver(tube.no, entries, effects, now)
        if self.on_unreadable and UNREADABLE in [record.reason for record in records if record.state == "!"]:
            self.unreadable += 1
            self.on_unreadable(tube, now)
        return records, reply[5:]

    def settle(self, tube: Tube, moves: Sequence[Move], brief: bool, now: int | None) -> Settled:
        """Apply each move whose guard still holds; `brief`: nobody needs the records and events of acks."""
        if brief and (acked := self._ack(tube, moves, now)) is not None:
            return acked
        effects = Effects()
        records, rest = self.run("settle", tube, effects, *pack_moves(moves), now=now)
        places = cast("list[int]", rest[0])
        return Settled([records[place - 1] if place else None for place in places], effects)

    def _ack(self, tube: Tube, moves: Sequence[Move], now: int | None) -> Settled | None:
        """Apply the moves if they are all plain acks by one session. None, and nothing was done, if they are not."""
        session = moves[0].session if moves else None
        if session is None or not self._runner.is_plain(tube) or not _are_acks(moves, session):
            return None
        listed = b"".join([_pack(move.id >> 32, move.id & 0xFFFFFFFF, move.lease or 0) for move in moves])
        reply = self._runner.on_tube("ack", tube, session.to_bytes(6, "big"), listed, now=now)
        if reply[0] == _RELATED:
            return None
        _, removed, missed = cast("tuple[int, int, list[int]]", tuple(reply))
        records: list[Record | None] = [GONE] * len(moves)
        for place in missed:
            records[place - 1] = None
        return Settled(records, Effects(removed={tube.no: removed} if removed else {}))

    def kick(self, tube: Tube, count: int, now: int | None) -> Settled:
        """Kick up to `count` buried tasks, in take order."""
        settled = Settled([], Effects())
        while len(settled.records) < count:
            limit = min(count - len(settled.records), ADVANCE_STEP)
            more, places, *_ = self._sweep("kick", tube, settled, limit, now)
            if not more and len(cast("list[int]", places)) < limit:
                break
        return settled

    def release_all(self, tube: Tube, now: int | None) -> Settled:
        """Release every taken task; tasks taken meanwhile may stay taken."""
        settled = Settled([], Effects())
        left: int | None = None
        while left is None or left > 0:
            more, places, still = self._sweep("release_all", tube, settled, ADVANCE_STEP, now)
            if not more:
                done, still = len(cast("list[int]", places)), cast(int, still)
                left = min(still, still if left is None else left - done)
        return _in_order(settled)

    def truncate(self, tube: Tube, now: int | None) -> Settled:
        """Remove every task; tasks put meanwhile have higher ids than the last one seen first, and stay."""
        settled = Settled([], Effects())
        cursor, last = b"0", ""
        while True:
            with stepwise(settled.records):
                records, rest = self.run("truncate", tube, settled.effects, cursor, PAGE, last, now=now)
            cursor, last = cast(bytes, rest[0]), str(rest[1])
            settled.records.extend(records[place - 1] for place in cast("list[int]", rest[2]))
            if cursor == b"0":
                return _in_order(settled)

    def _sweep(self, name: str, tube: Tube, settled: Settled, limit: int, now: int | None) -> list[Reply]:
        """One step of kick or release_all, added to those before; its answer begins with whether more is due."""
        with stepwise(settled.records):
            records, rest = self.run(name, tube, settled.effects, ADVANCE_STEP, limit, now=now)
        settled.records.extend(records[place - 1] for place in cast("list[int]", rest[1]))
        return rest


def pack_moves(moves: Sequence[Move]) -> list[bytes]:
    """The arguments of settle. Results, which may be any bytes, follow the moves."""
    results: list[bytes] = []
    return [_encode([_packed(move, results) for move in moves]), *results]


def _packed(move: Move, results: list[bytes]) -> tuple[object, ...]:
    id: int | str = move.id if 0 < move.id <= MAX_ID else 0  # an id that no task has
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


def _are_acks(moves: Sequence[Move], session: int) -> bool:
    alike = all(
        move.verb == "ack" and move.session == session and move.result is None and 0 < move.id <= MAX_ID
        for move in moves
    )
    return alike and len({move.id for move in moves}) == len(moves)


def _in_order(settled: Settled) -> Settled:
    settled.records.sort(key=lambda record: record.id if record else 0)
    return settled
