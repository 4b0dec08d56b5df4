"""Reads that change nothing: pages of tasks and outcomes in id order, counters, micro-queues."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from msgspec.structs import astuple, replace

from penstock.core.group import Group
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.results import Counts, Lane
from penstock.core.shards import own_in
from penstock.core.task import Record
from penstock.core.transfer import TubeCounters
from penstock.errors import NoSuchTube
from penstock.store.redis.encoding import lane_name, read_group, read_lane, task_id, task_key
from penstock.store.redis.runner import Runner
from penstock.store.redis.tubes import Shards

# Tasks that one call of a paging script reads: about a millisecond.
PAGE = 500
_HASHES = frozenset({"tasks", "lanes", "addresses", "outcomes", "groups"})
# An entry of a listing is an id, and in its lowest bits the place of the shard: see MAX_SHARDS in penstock.core.shards.
_PLACE_BITS = 8
_PLACES = (1 << _PLACE_BITS) - 1


def all_ids(runner: Runner, tube: Tube) -> set[int]:
    """The ids of all stored tasks, read in pages."""
    return {task_id(field) for field, _ in scan(runner, tube, "tasks")}


def scan(runner: Runner, tube: Tube, part: str) -> Iterable[tuple[bytes, bytes]]:
    """A hash or sorted set of a tube, read in pages."""
    cursor, command = b"0", b"HSCAN" if part in _HASHES else b"ZSCAN"
    while True:
        reply = runner.command(tube.no, part, command, cursor, b"COUNT", PAGE)
        cursor, pairs = cast("tuple[bytes, list[bytes]]", reply)
        yield from ((pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2))
        if cursor == b"0":
            return


def groups(runner: Runner, tube: Tube) -> dict[int, Group]:
    """All groups of a stored tube by number, with their work."""
    fields = dict(scan(runner, tube, "groups"))  # a scan may return a field twice
    found = {
        no: read_group(no, stored) for name, stored in fields.items() if name[:1] == b"g" and (no := task_id(name))
    }
    for no, group in found.items():
        group.end, group.cancel = (fields.get(letter + task_key(no)) for letter in (b"e", b"c"))
    return found


def read_counters(runner: Runner, tubes: Sequence[Tube], *, frozen: bool = False) -> list[TubeCounters]:
    """The last ids and the counters of stored tubes; `frozen`: also of one that was moved away."""
    names = ("last", "sealed", "paused", "ms", "seq", "skipped", "unput", *Counts.__struct_fields__)
    replies = runner.command_each(tubes, "meta", b"HMGET", *(name.encode() for name in names))
    found = zip(tubes, cast("list[list[bytes | None]]", replies), strict=True)
    return [_counted(runner, tube, reply, frozen=frozen) for tube, reply in found]


def add_up(parts: Sequence[TubeCounters]) -> Counts:
    """The counters of all shards of a tube together."""
    return Counts(*map(sum, zip(*(astuple(part.counts) for part in parts), strict=True)))


def _counted(runner: Runner, tube: Tube, found: list[bytes | None], *, frozen: bool) -> TubeCounters:
    """The counters of one stored tube. `put` is the last id less those never given; `ready` and `done` are computed."""
    last = found[1] if frozen and found[0] is None else found[0]
    runner.known(tube, [-1 if last is None else 0])
    ms, seq, skipped, unput, *numbers = (int(number or 0) for number in found[3:])
    counts = dict(zip(Counts.__struct_fields__, numbers, strict=True))
    done = counts["ack"] + counts["fail"] + counts["delete"] + counts["ttl"] + skipped - unput
    counts.update(put=int(last or 0) - unput, done=done)
    counts["ready"] = counts["put"] - done - counts["taken"] - counts["delayed"] - counts["buried"]
    return TubeCounters(int(last or 0), (ms, seq), Counts(**counts), found[2] is not None)


def read_queue(runner: Runner, tube: Tube, utube: str) -> Lane:
    """The counters of a micro-queue."""
    stored = cast("bytes | None", runner.command(tube.no, "lanes", b"HGET", lane_name(utube)))
    taken, heads, waiting, _ = read_lane(stored or bytes(18))
    return Lane(utube, taken, heads, waiting)


def read_waits(runner: Runner, tubes: Sequence[Tube]) -> dict[int, float]:
    """How long the oldest ready task of each stored tube has waited (`TubeCounters.waits`), without what is gone."""
    sorts = {DELIVER: "messages", CLOCK: ""}
    asked = [(tube, sorts.get(tube.kind.hand_out, "ready")) for tube in tubes]
    replies = runner.servers.run_all([runner.tube_request("ready_since", *words) for words in asked])
    found: dict[int, float] = {}
    for words, reply in zip(asked, cast("list[list[int]]", replies), strict=True):
        with suppress(NoSuchTube):
            # A script that cannot answer says why when it runs alone.
            now, since = reply if len(reply) > 1 else runner.on_tube("ready_since", *words, idempotent=True)
            found[words[0].no] = max(0, cast(int, now) - cast(int, since)) / 1000 if since else 0.0
    return found


def handed(runner: Runner, tube: Tube) -> int:
    """The id up to which the messages of a reliable tube were handed out, or are gone."""
    return int(cast("bytes | None", runner.command(tube.no, "meta", b"HGET", b"handed")) or 0)


class Found(NamedTuple):
    """A stored value: its public id, its shard, and its id there."""

    id: int
    shard: Tube
    own: int
    value: bytes


def with_errors(runner: Runner, records: Sequence[tuple[Tube, int, Record]]) -> list[Record]:
    """Tasks, given with their stored tubes and own ids, with the errors of those that have any."""
    flagged = [place for place, (_, _, record) in enumerate(records) if record.errors is not None]
    found = [record for _, _, record in records]
    keys = [(runner.keys.name(records[place][0].no, "errors"), task_key(records[place][1])) for place in flagged]
    answers = runner.servers.command_all([(key, (b"HGET", key, field)) for key, field in keys]) if keys else []
    for place, errors in zip(flagged, answers, strict=True):
        found[place] = replace(found[place], errors=cast("bytes | None", errors) or b"")
    return found


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
        ids = [(entry >> _PLACE_BITS, shards[entry & _PLACES]) for entry in entries]
        wanted = [(id, shard, own_in(id, len(shards), floor)) for id, shard in ids]
        keys = [(self._runner.keys.name(shard.no, part), task_key(own)) for _, shard, own in wanted]
        values = self._runner.servers.command_all([(key, (b"HGET", key, field)) for key, field in keys])
        return [Found(*one, cast(bytes, value)) for one, value in zip(wanted, values, strict=True) if value is not None]
