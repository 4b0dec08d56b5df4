"""Reads that change nothing: parts of a tube in pages, groups, counters, micro-queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec.structs import astuple

from penstock.core.group import Group
from penstock.core.kind import CLOCK
from penstock.core.options import Tube
from penstock.core.results import Counts, MicroQueue
from penstock.core.transfer import TubeCounters
from penstock.errors import NoSuchTube
from penstock.store.redis.encoding import micro_queue_name, read_group, read_micro_queue, task_id, task_key
from penstock.store.redis.runner import Runner

# Tasks that one call of a paging script reads: about a millisecond.
PAGE = 500
# The parts of a tube that are sorted sets; the others are hashes.
SORTED = frozenset(
    {"ready", "buried", "taken", "delivered", "due", "queue", "members", "kept", "moving", "ends", "marks"}
)


def all_ids(runner: Runner, tube: Tube) -> set[int]:
    """The ids of all stored tasks, read in pages."""
    return {task_id(field) for field, _ in scan(runner, tube, "tasks")}


def scan(runner: Runner, tube: Tube, part: str) -> Iterable[tuple[bytes, bytes]]:
    """A hash or sorted set of a tube, read in pages."""
    cursor, command = b"0", b"ZSCAN" if part in SORTED else b"HSCAN"
    while True:
        reply = runner.command(tube.no, part, command, cursor, b"COUNT", PAGE)
        cursor, pairs = cast("tuple[bytes, list[bytes]]", reply)
        yield from ((pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2))
        if cursor == b"0":
            return


def read_part(runner: Runner, tube: Tube, part: str) -> dict[bytes, Any]:
    """A whole part of a tube: the values of a hash, or the scores of a sorted set."""
    found = dict(scan(runner, tube, part))  # a scan may return a field twice
    return {name: float(score) for name, score in found.items()} if part in SORTED else found


def groups(fields: Mapping[bytes, bytes]) -> dict[int, Group]:
    """All groups of a stored tube by number, with their work."""
    found = {
        no: read_group(no, stored) for name, stored in fields.items() if name[:1] == b"g" and (no := task_id(name))
    }
    for no, group in found.items():
        group.end, group.cancel = (fields.get(letter + task_key(no)) for letter in (b"e", b"c"))
    return found


def read_counters(runner: Runner, tubes: Sequence[Tube], *, frozen: bool = False) -> list[TubeCounters]:
    """The last ids and the counters of stored tubes; `frozen`: also of tubes that were moved away."""
    names = ("last", "frozen", "paused", "ms", "seq", "skipped", "unput", *Counts.__struct_fields__)
    replies = runner.command_each(tubes, "meta", b"HMGET", *(name.encode() for name in names))
    found = zip(tubes, cast("list[list[bytes | None]]", replies), strict=True)
    return [_counted(runner, tube, reply, frozen=frozen) for tube, reply in found]


def add_up(parts: Sequence[TubeCounters]) -> Counts:
    """The counters of all shards of a tube together."""
    return Counts(*map(sum, zip(*(astuple(part.counts) for part in parts), strict=True)))


def _counted(runner: Runner, tube: Tube, found: list[bytes | None], *, frozen: bool) -> TubeCounters:
    """The counters of one stored tube. `put` is the last id less ids never given; `ready` and `done` are computed."""
    last = found[1] if frozen and found[0] is None else found[0]
    runner.known(tube, [-1 if last is None else 0])
    ms, seq, skipped, unput, *numbers = (int(number or 0) for number in found[3:])
    counts = dict(zip(Counts.__struct_fields__, numbers, strict=True))
    done = counts["ack"] + counts["fail"] + counts["delete"] + counts["ttl"] + skipped - unput
    counts.update(put=int(last or 0) - unput, done=done)
    counts["ready"] = counts["put"] - done - counts["taken"] - counts["delayed"] - counts["buried"]
    return TubeCounters(int(last or 0), (ms, seq), Counts(**counts), found[2] is not None)


def read_queue(runner: Runner, tube: Tube, utube: str) -> MicroQueue:
    """The counters of a micro-queue."""
    stored = cast("bytes | None", runner.command(tube.no, "micro_queues", b"HGET", micro_queue_name(utube)))
    taken, heads, waiting, _ = read_micro_queue(stored or bytes(18))
    return MicroQueue(utube, taken, heads, waiting)


def read_waits(runner: Runner, tubes: Sequence[Tube]) -> dict[int, float]:
    """How long the oldest ready task of each stored tube has waited (`TubeCounters.waits`), without dropped tubes."""
    asked = [(tube, int(tube.kind.hand_out != CLOCK)) for tube in tubes]
    replies = runner.servers.run_all([runner.tube_request("ready_since", *words) for words in asked])
    found: dict[int, float] = {}
    for words, reply in zip(asked, cast("list[list[int]]", replies), strict=True):
        with suppress(NoSuchTube):
            # If the script refused, on_tube raises the reason or, in a pool, restores the index.
            now, since = reply if len(reply) > 1 else runner.on_tube("ready_since", *words, idempotent=True)
            found[words[0].no] = max(0, cast(int, now) - cast(int, since)) / 1000 if since else 0.0
    return found
