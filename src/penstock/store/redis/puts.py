"""Arguments of the put scripts, and the records that these store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from penstock.core.entry import new_record, plain_entry, record_maker, stands_alone
from penstock.core.ids import shown_mark
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store.redis.connection import Argument, Reply, packed
from penstock.store.redis.encoding import new_pieces, sortable
from penstock.store.redis.runner import Runner
from penstock.store.redis.servers import Request
from penstock.store.redis.tubes import Shard

_encode = msgspec.msgpack.Encoder().encode
Spec = tuple[object, ...]


def pack_entries(tube: Tube, entries: Sequence[Entry]) -> list[bytes]:
    """The arguments of a put: runs of entries that differ in their payload and micro-queue only; then the payloads."""
    runs: list[tuple[Spec, list[str | None]]] = []
    last, laned = None, tube.kind.per_utube
    for entry in entries:
        spec = _spec(entry, None if laned else entry.utube)
        if spec != last:
            runs.append((spec, []))
            last = spec
        runs[-1][1].append(entry.utube)
    packed = [(spec, len(utubes), utubes if laned else None) for spec, utubes in runs]
    return [_encode(packed), *[entry.payload for entry in entries]]


def pack_related(tube: Tube, entries: Sequence[Entry]) -> list[bytes]:
    """The arguments of a put with addresses, reply tubes or groups: the tube's facts, entries, payloads."""
    packed = [
        (_spec(entry, entry.utube), entry.address, entry.duplicate, entry.reply_to, entry.group, entry.group_no)
        for entry in entries
    ]
    return [pack_facts(tube), _encode(packed), *[entry.payload for entry in entries]]


def pack_facts(tube: Tube) -> bytes:
    """What scripts must know of a tube whose tasks have relations: retention, name, and the spec of a plain task.

    A shard has no name, so that replies to its own tube go to the right shard, but the number of shards, its place and
    its floor, for the ids in replies.
    """
    spec = _spec(plain_entry(tube, b""))
    if isinstance(tube, Shard):
        return _encode((tube.retention, "", spec, tube.of, tube.place, tube.floor))
    return _encode((tube.retention, tube.name, spec))


def pack_plain_spec(tube: Tube) -> bytes:
    """The spec of a task put without options."""
    return _encode(_spec(plain_entry(tube, b"")))


def pack_link(entry: Entry) -> bytes:
    """What receive_replies needs of a link of a chain."""
    return _encode((_spec(entry, entry.utube), entry.address, entry.reply_to))


def _spec(entry: Entry, utube: str | None = None) -> Spec:
    one, two = entry.rank1, entry.rank2
    return (
        one.base, one.clock, one.newest, two.base, two.clock, two.newest, entry.pri, utube, entry.ttl, entry.ttr,
        entry.delay, entry.extra,
    )  # fmt: skip


def stored_records(tube: Tube, entries: Sequence[Entry], first: int, now: int, decided: list[Reply]) -> list[Record]:
    """The records that a put script stored, with ids from `first` on, and what else the script decided."""
    records = [new_record(entry, id, now) for id, entry in enumerate(entries, first)]
    if tube.kind.per_utube:  # states, and of fair tubes second ranks: which tasks are heads
        states, ranks = cast("tuple[bytes, list[bytes]]", tuple(decided))
        if tube.fair:
            records = [replace(one, rank2=float(rank)) for one, rank in zip(records, ranks, strict=True)]
        both = zip(records, states.decode(), strict=True)
        return [record if record.state == state else replace(record, state=state) for record, state in both]
    if not tube.kind.leased:  # the message id that theirs follow
        ms, seq = cast("list[int]", decided)
        return [replace(record, address=shown_mark((ms, place))) for place, record in enumerate(records, seq + 1)]
    return records


def plain_put(runner: Runner, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
    """A function that stores a payload, faster than a put; what is the same for all payloads is packed once.

    None if a task's rank depends on its time, its id or other tasks.
    """
    if not stands_alone(tube, entry):
        return None
    bare = runner.tag_request("put_plain", tube.no)
    script, keys = bare.script, bare.keys
    words, make = plain_words(runner, tube, entry), record_maker(entry)
    calls = b"*%d\r\n" % (len(keys) + len(words) + 5)
    before = calls + packed(b"EVALSHA", script.digest, len(keys), *keys)
    after = packed(*words)

    def put(payload: bytes) -> Record:
        now = packed(runner.moment(None))
        command = b"%b%b%b$%d\r\n%b\r\n" % (before, now, after, len(payload), payload)
        reply = runner.servers.run(Request(script, keys, (), command), idempotent=False)
        created, id = cast("list[int]", runner.known(tube, cast("list[Reply]", reply)))
        return make(id, created, payload)

    return put


def plain_words(runner: Runner, tube: Tube, entry: Entry) -> list[Argument]:
    """The arguments of the script between the time and the data."""
    second = "2" in runner.shape(tube).letters
    head, middle, end = new_pieces(entry)
    ttl = "" if entry.ttl is None else entry.ttl
    return [head, middle, ttl, end, entry.rank1.base, sortable(entry.rank2.base) if second else b""]
