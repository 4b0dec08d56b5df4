"""Looks that change nothing: tasks by id and by status, counters, what is ahead, who is in a micro-queue."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Sequence
from typing import cast

from msgspec.structs import astuple

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import Counts, Lane
from penstock.store.redis.keys import MAX_ID, task_id, task_key
from penstock.store.redis.link import Reply
from penstock.store.redis.record import decode
from penstock.store.redis.runner import Runner, read_pairs

# Tasks that one call of a paging script looks at: a millisecond or so.
PAGE = 500
# Where a script stops to count what is ahead of a task.
_AHEAD_LIMIT = 1000
_LANE = struct.Struct(">IIIHI")
_HASHES = frozenset({"tasks", "lanes", "addresses", "outcomes", "groups"})
_STATES = {None: "rqtp~g!", "r": "rq", "t": "tp", "~": "~g"}


def get(runner: Runner, tube: Tube, ids: Sequence[int], now: int | None) -> list[Record | None]:
    """The tasks with these ids; one past its ttl, unless taken, is None."""
    wanted = [task_key(id) if 0 < id <= MAX_ID else b"" for id in ids]
    reply = runner.on_tag("get_tasks", tube.no, runner.moment(now), *wanted, again=True)
    moment, *values = runner.known(tube, cast("list[Reply]", reply))
    found = zip(ids, cast("list[bytes | None]", values), strict=True)
    return [None if value is None else unless_expired(decode(id, value), cast(int, moment)) for id, value in found]


def unless_expired(record: Record, now: int) -> Record | None:
    """The record, unless its ttl is over; a taken one outlives it."""
    gone = record.state != "t" and record.expires is not None and record.expires <= now
    return None if gone else record


def find(runner: Runner, tube: Tube, status: str | None, after: int, limit: int, now: int | None) -> list[Record]:
    """Up to limit tasks above an id, in id order.

    Ids are looked at one after the other where most of them are there; where few are, these are listed first.
    """
    states, records, place = _STATES.get(status, status), list[Record](), max(after, 0)
    while len(records) < limit and place < MAX_ID:
        arguments = (runner.moment(now), states or "", place, limit - len(records), PAGE)
        reply = runner.on_tag("find_tasks", tube.no, *arguments, again=True)
        _, place, last, stored = cast("list[int]", runner.known(tube, cast("list[Reply]", reply))[:4])
        records += read_pairs(cast("list[Reply]", reply)[4:])
        left = last - place
        if left <= 0 or not stored:
            break
        if left > 4 * stored + PAGE:
            return records + _sparse(runner, tube, states or "", place, limit - len(records), now)
    return records


def _sparse(runner: Runner, tube: Tube, states: str, after: int, limit: int, now: int | None) -> list[Record]:
    """The same where most ids are gone: every id there is, then the lowest of them until there are enough."""
    ids = sorted(id for id in all_ids(runner, tube) if id > after)
    records: list[Record] = []
    for start in range(0, len(ids), PAGE):
        found = get(runner, tube, ids[start : start + PAGE], now)
        records += [record for record in found if record is not None and record.state in states]
        if len(records) >= limit:
            break
    return records[:limit]


def all_ids(runner: Runner, tube: Tube) -> set[int]:
    """The ids of all stored tasks, read in pages."""
    return {task_id(field) for field, _ in scan(runner, tube, "tasks")}


def scan(runner: Runner, tube: Tube, part: str) -> Iterable[tuple[bytes, bytes]]:
    """A hash or sorted set of a tube, in pages."""
    key, cursor = runner.keys.name(tube.no, part), b"0"
    command = b"HSCAN" if part in _HASHES else b"ZSCAN"
    while True:
        cursor, pairs = cast(
            "tuple[bytes, list[bytes]]", runner.servers.command(key, command, key, cursor, b"COUNT", PAGE)
        )
        yield from ((pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2))
        if cursor == b"0":
            return


def count(runner: Runner, tubes: Sequence[Tube], *, sealed: bool = False) -> Counts:
    """The counters of a tube, or of all its shards together; `sealed`: also of one that was moved."""
    keys = [runner.keys.name(tube.no, "meta") for tube in tubes]
    names = [b"last", b"sealed", b"skipped", b"unput", *(name.encode() for name in Counts.__struct_fields__)]
    replies = runner.servers.command_all([(key, (b"HMGET", key, *names)) for key in keys])
    found = zip(tubes, cast("list[list[bytes | None]]", replies), strict=True)
    counts = [_counted(runner, tube, reply, sealed=sealed) for tube, reply in found]
    return Counts(*map(sum, zip(*map(astuple, counts), strict=True)))


def _counted(runner: Runner, tube: Tube, found: list[bytes | None], *, sealed: bool) -> Counts:
    """What was put is the last id, less those that were never given; what is ready and what is done follow."""
    last = found[1] if sealed and found[0] is None else found[0]
    runner.known(tube, [-1 if last is None else 0])
    skipped, unput, *numbers = (int(number or 0) for number in found[2:])
    counts = dict(zip(Counts.__struct_fields__, numbers, strict=True))
    done = counts["ack"] + counts["fail"] + counts["delete"] + counts["ttl"] + skipped - unput
    counts.update(put=int(last or 0) - unput, done=done)
    counts["ready"] = counts["put"] - done - counts["taken"] - counts["delayed"] - counts["buried"]
    return Counts(**counts)


def ahead(runner: Runner, tube: Tube, record: Record) -> int:
    """How many takeable tasks come out before this one, up to a limit."""
    arguments = (runner.shape(tube).letters, repr(float(record.rank1)), repr(float(record.rank2)), task_key(record.id))
    return min(cast(int, runner.on_tag("count_ahead", tube.no, *arguments, again=True)), _AHEAD_LIMIT)


def lane(runner: Runner, tube: Tube, utube: str) -> Lane:
    """The numbers of a micro-queue, all 0 when nothing is in it."""
    key = runner.keys.name(tube.no, "lanes")
    stored = cast("bytes | None", runner.servers.command(key, b"HGET", key, utube))
    taken, heads, waiting, _ = read_lane(stored or bytes(18))
    return Lane(utube, taken, heads, waiting)


def read_lane(stored: bytes) -> tuple[int, int, int, int]:
    """Taken, heads, waiting and turn of a micro-queue."""
    taken, heads, waiting, high, low = _LANE.unpack(stored)
    return taken, heads, waiting, high << 32 | low


def lane_holders(runner: Runner, tube: Tube, utube: str, ids: Sequence[int], limit: int) -> list[Record]:
    """Of these taken tasks, those of a micro-queue, oldest hand-out first."""
    records: list[Record] = []
    for start in range(0, len(ids), PAGE):
        found = get(runner, tube, ids[start : start + PAGE], None)
        records += [record for record in found if record and record.state == "t" and record.utube == utube]
    return heapq.nsmallest(limit, records, key=lambda record: (record.taken or 0, record.id))
