"""Reads that change nothing: tasks by id, name and status, pages in id order, counters, micro-queues."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from msgspec.structs import astuple

from penstock.core.options import Tube
from penstock.core.shards import own_in
from penstock.core.task import Record
from penstock.store.base import Counts, Lane
from penstock.store.redis.connection import Reply
from penstock.store.redis.encoding import MAX_ID, decode, read_lane, task_id, task_key
from penstock.store.redis.runner import Runner, read_pairs
from penstock.store.redis.tubes import Shards

# Tasks that one call of a paging script reads: about a millisecond.
PAGE = 500
# The largest number of tasks ahead that is reported.
_AHEAD_LIMIT = 1000
_HASHES = frozenset({"tasks", "lanes", "addresses", "outcomes", "groups"})
# An entry of a listing is an id, and in its lowest bits the place of the shard: see MAX_SHARDS in penstock.core.shards.
_PLACE_BITS = 8
_PLACES = (1 << _PLACE_BITS) - 1
_STATES = {None: "rqtp~g!", "r": "rq", "t": "tp", "~": "~g"}


def get(runner: Runner, tube: Tube, ids: Sequence[int], now: int | None) -> list[Record | None]:
    """The tasks with these ids; None for those past their ttl, unless they are taken."""
    wanted = [task_key(id) if 0 < id <= MAX_ID else b"" for id in ids]
    reply = runner.on_tag("get_tasks", tube.no, runner.moment(now), *wanted, idempotent=True)
    moment, *values = runner.known(tube, cast("list[Reply]", reply))
    found = zip(ids, cast("list[bytes | None]", values), strict=True)
    return [None if value is None else unless_expired(decode(id, value), cast(int, moment)) for id, value in found]


def get_by_name(runner: Runner, tube: Tube, names: Sequence[str], now: int | None) -> list[Record | None]:
    """The tasks with these public ids, of a kind without leases; None for those past their ttl."""
    reply = runner.on_tag("get_by_name", tube.no, runner.moment(now), *names, idempotent=True)
    moment, *found = runner.known(tube, cast("list[Reply]", reply))
    pairs = zip(cast("list[int]", found[::2]), cast("list[bytes | None]", found[1::2]), strict=True)
    return [None if value is None else unless_expired(decode(id, value), cast(int, moment)) for id, value in pairs]


def list_messages(runner: Runner, tube: Tube, start: int, count: int, delivered: bool) -> list[Record]:
    """Messages from a position on, of the undelivered or the delivered."""
    reply = runner.on_tag("list_messages", tube.no, start, count, int(delivered), idempotent=True)
    return read_pairs(runner.known(tube, cast("list[Reply]", reply))[1:])


def unless_expired(record: Record, now: int) -> Record | None:
    """The record, or None if its ttl has passed; a taken task outlives its ttl."""
    gone = record.state != "t" and record.expires is not None and record.expires <= now
    return None if gone else record


def find(runner: Runner, tube: Tube, status: str | None, after: int, limit: int, now: int | None) -> list[Record]:
    """Up to limit tasks above an id, in id order.

    Reads all ids one after the other while most of them exist; if few do, lists the existing ids first.
    """
    states, records, place = _STATES.get(status, status), list[Record](), max(after, 0)
    while len(records) < limit and place < MAX_ID:
        arguments = (runner.moment(now), states or "", place, limit - len(records), PAGE)
        reply = runner.on_tag("find_tasks", tube.no, *arguments, idempotent=True)
        _, place, last, stored = cast("list[int]", runner.known(tube, cast("list[Reply]", reply))[:4])
        records += read_pairs(cast("list[Reply]", reply)[4:])
        left = last - place
        if left <= 0 or not stored:
            break
        if left > 4 * stored + PAGE:
            return records + _sparse(runner, tube, states or "", place, limit - len(records), now)
    return records


def _sparse(runner: Runner, tube: Tube, states: str, after: int, limit: int, now: int | None) -> list[Record]:
    """The same if most ids are gone: list all ids, then read the lowest until there are enough."""
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
    """A hash or sorted set of a tube, read in pages."""
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
    """The counters of a tube, or of all its shards together; `sealed`: also of a tube that was moved away."""
    keys = [runner.keys.name(tube.no, "meta") for tube in tubes]
    names = [b"last", b"sealed", b"skipped", b"unput", *(name.encode() for name in Counts.__struct_fields__)]
    replies = runner.servers.command_all([(key, (b"HMGET", key, *names)) for key in keys])
    found = zip(tubes, cast("list[list[bytes | None]]", replies), strict=True)
    counts = [_counted(runner, tube, reply, sealed=sealed) for tube, reply in found]
    return Counts(*map(sum, zip(*map(astuple, counts), strict=True)))


def _counted(runner: Runner, tube: Tube, found: list[bytes | None], *, sealed: bool) -> Counts:
    """The counters of one stored tube. `put` is the last id less those never given; `ready` and `done` are computed."""
    last = found[1] if sealed and found[0] is None else found[0]
    runner.known(tube, [-1 if last is None else 0])
    skipped, unput, *numbers = (int(number or 0) for number in found[2:])
    counts = dict(zip(Counts.__struct_fields__, numbers, strict=True))
    done = counts["ack"] + counts["fail"] + counts["delete"] + counts["ttl"] + skipped - unput
    counts.update(put=int(last or 0) - unput, done=done)
    counts["ready"] = counts["put"] - done - counts["taken"] - counts["delayed"] - counts["buried"]
    return Counts(**counts)


def ahead(runner: Runner, tube: Tube, record: Record) -> int:
    """How many ready tasks come before this one, up to a limit."""
    arguments = (runner.shape(tube).letters, repr(float(record.rank1)), repr(float(record.rank2)), task_key(record.id))
    return min(cast(int, runner.on_tag("count_ahead", tube.no, *arguments, idempotent=True)), _AHEAD_LIMIT)


def lane(runner: Runner, tube: Tube, utube: str) -> Lane:
    """The numbers of a micro-queue, all 0 if it is empty."""
    key = runner.keys.name(tube.no, "lanes")
    stored = cast("bytes | None", runner.servers.command(key, b"HGET", key, utube))
    taken, heads, waiting, _ = read_lane(stored or bytes(18))
    return Lane(utube, taken, heads, waiting)


def lane_holders(runner: Runner, tube: Tube, utube: str, ids: Sequence[int], limit: int) -> list[Record]:
    """Those of these taken tasks that are in a micro-queue, oldest hand-out first."""
    records: list[Record] = []
    for start in range(0, len(ids), PAGE):
        found = get(runner, tube, ids[start : start + PAGE], None)
        records += [record for record in found if record and record.state == "t" and record.utube == utube]
    return heapq.nsmallest(limit, records, key=lambda record: (record.taken or 0, record.id))


class Found(NamedTuple):
    """A stored value: its public id, its shard, and its id there."""

    id: int
    shard: Tube
    own: int
    value: bytes


class Listing:
    """Tasks or outcomes of a tube in pages, in id order, which Redis does not keep.

    The ids are listed once for all pages, of all shards together, which costs eight bytes each.
    """

    def __init__(self, runner: Runner, shards: Shards) -> None:
        self._runner = runner
        self._shards = shards
        self._listed: dict[tuple[int, str], array[int]] = {}

    def pages(self, tube: Tube, part: str, after: int, limit: int) -> Iterator[list[Found]]:
        """All values above an id, `limit` ids at a time, without those removed since the ids were listed."""
        which = tube.no, part
        if after == 0 or which not in self._listed:
            self._listed = {which: array("Q", sorted(self._entries(tube, part)))}
        entries = self._listed[which]
        start = bisect_right(entries, after << _PLACE_BITS | _PLACES)
        for at in range(start, len(entries), limit):
            yield self._values(tube, part, entries[at : at + limit])

    def _entries(self, tube: Tube, part: str) -> set[int]:
        return {
            self._shards.public_id(shard.no, task_id(field)) << _PLACE_BITS | place
            for place, shard in enumerate(self._shards.of(tube))
            for field, _ in scan(self._runner, shard, part)
        }

    def _values(self, tube: Tube, part: str, entries: Sequence[int]) -> list[Found]:
        shards, floor = self._shards.of(tube), self._shards.floor(tube)
        ids: dict[int, list[int]] = {}
        for entry in entries:
            ids.setdefault(entry & _PLACES, []).append(entry >> _PLACE_BITS)
        owns = {place: [own_in(id, len(shards), floor) for id in here] for place, here in ids.items()}
        keys = {place: self._runner.keys.name(shards[place].no, part) for place in ids}
        replies = self._runner.servers.command_all(
            [(key, (b"HMGET", key, *map(task_key, owns[place]))) for place, key in keys.items()]
        )
        found = [
            Found(id, shards[place], own, value)
            for place, values in zip(ids, cast("list[list[bytes | None]]", replies), strict=True)
            for id, own, value in zip(ids[place], owns[place], values, strict=True)
            if value is not None
        ]
        return sorted(found, key=lambda one: one.id)
