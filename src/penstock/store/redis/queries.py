"""Reads that change nothing: pages of tasks and outcomes in id order, counters, micro-queues."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from msgspec.structs import astuple

from penstock.core.options import Tube
from penstock.core.results import Counts, Lane
from penstock.core.shards import own_in
from penstock.core.task import Record
from penstock.core.transfer import Tally
from penstock.store.redis.encoding import read_lane, sortable, task_id, task_key
from penstock.store.redis.runner import Runner
from penstock.store.redis.tubes import Shards

# Tasks that one call of a paging script reads: about a millisecond.
PAGE = 500
# The largest number of tasks ahead that is reported.
_AHEAD_LIMIT = 1000
_HASHES = frozenset({"tasks", "lanes", "addresses", "outcomes", "groups"})
# An entry of a listing is an id, and in its lowest bits the place of the shard: see MAX_SHARDS in penstock.core.shards.
_PLACE_BITS = 8
_PLACES = (1 << _PLACE_BITS) - 1


def some_keys(runner: Runner, tube: Tube, limit: int, upto: int) -> list[bytes]:
    """The keys of any tasks up to an id, so many if there are."""
    keys: dict[bytes, None] = {}  # a scan may return a field twice
    for key, _ in scan(runner, tube, "tasks"):
        if task_id(key) <= upto:
            keys[key] = None
            if len(keys) == limit:
                break
    return list(keys)


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


def tally(runner: Runner, tube: Tube) -> Tally:
    """The last ids and the counters of a stored tube, also of one that was moved away."""
    key = runner.keys.name(tube.no, "meta")
    words = cast("list[bytes | None]", runner.servers.command(key, b"HMGET", key, b"last", b"sealed", b"ms", b"seq"))
    last, sealed, ms, seq = (int(word or 0) for word in words)
    return Tally(last or sealed, (ms, seq), count(runner, [tube], sealed=True))


def ahead(runner: Runner, tube: Tube, record: Record) -> int:
    """How many ready tasks come before this one, up to a limit."""
    key, rank = runner.keys.name(tube.no, "ready"), repr(float(record.rank1))
    like = (b"ZRANGEBYSCORE", key, rank, rank, b"LIMIT", 0, _AHEAD_LIMIT)
    before, alike = runner.servers.command_all([(key, (b"ZCOUNT", key, b"-inf", f"({rank}")), (key, like)])
    name = (sortable(record.rank2) if "2" in runner.shape(tube).letters else b"") + task_key(record.id)
    return min(cast(int, before) + bisect_left(cast("list[bytes]", alike), name), _AHEAD_LIMIT)


def lane(runner: Runner, tube: Tube, utube: str) -> Lane:
    """The numbers of a micro-queue, all 0 if it is empty."""
    key = runner.keys.name(tube.no, "lanes")
    stored = cast("bytes | None", runner.servers.command(key, b"HGET", key, utube))
    taken, heads, waiting, _ = read_lane(stored or bytes(18))
    return Lane(utube, taken, heads, waiting)


class Found(NamedTuple):
    """A stored value: its public id, its shard, and its id there."""

    id: int
    shard: Tube
    own: int
    value: bytes


class Pages:
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
