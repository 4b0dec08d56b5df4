"""Arguments of the put scripts, and the records that the scripts store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from penstock.core.entry import new_record, record_maker, stands_alone
from penstock.core.ids import shown_mark
from penstock.core.kind import DELIVER
from penstock.core.options import Tube
from penstock.core.stored_shard import Shard
from penstock.core.task import Entry, Record
from penstock.store.redis.encoding import new_pieces, pack_texts, sortable, task_key
from penstock.store.redis.redis_connection import Argument, Reply, packed
from penstock.store.redis.script_runner import ScriptRunner
from penstock.store.redis.servers import Request

_encode = msgspec.msgpack.Encoder().encode
Spec = tuple[object, ...]


def pack_put(tube: Tube, entries: Sequence[Entry]) -> list[Argument]:
    """The arguments of a put: capacity, facts, runs of consecutive entries that differ only in texts and payload, and
    the tail of each entry."""
    runs: list[tuple[Spec, int]] = []
    tails: list[bytes] = []
    last, count, spec = None, 0, Spec()
    for entry in entries:
        flags, texts = pack_texts(entry)
        # What the spec is made of. Entries of one put usually share their ranks, which makes this cheap to compare.
        key = (
            flags, entry.rank1, entry.rank2, entry.pri, entry.ttl, entry.ttr, entry.delay, entry.group_no,
            entry.unstarted, entry.reply_to is None,
        )  # fmt: skip
        if key != last:
            runs += [(spec, count)] if last else []
            last, count, spec = key, 0, _spec(flags, entry)
        count += 1
        tails.append(texts + entry.payload)
    runs.append((spec, count))
    return ["" if tube.capacity is None else tube.capacity, pack_facts(tube), _encode(runs), *tails]


def pack_facts(tube: Tube) -> bytes:
    """What meta stores for a tube whose tasks have relations: its retention, and a shard's place, count and floor."""
    shard = _encode((tube.place, tube.of, tube.floor)) if isinstance(tube, Shard) else b""
    return task_key(tube.retention) + shard


def pack_received(entry: Entry) -> tuple[Argument, Argument, Argument]:
    """The arguments of receive_replies for a reply, or for a link of a chain, which has an address."""
    flags, texts = pack_texts(entry)
    return "" if entry.address is None else 1, _encode(_spec(flags, entry)), texts + entry.payload


def _spec(flags: int, entry: Entry) -> Spec:
    one, two = entry.rank1, entry.rank2
    return (
        flags, one.base, one.clock, one.newest, two.base, two.clock, two.newest, entry.pri, entry.ttl or False,
        entry.ttr or False, entry.delay, entry.group_no or False, entry.unstarted, entry.reply_to is not None,
    )  # fmt: skip


def stored_records(tube: Tube, entries: Sequence[Entry], first: int, now: int, mark: Sequence[Reply]) -> list[Record]:
    """The records that a put script stored, with ids from `first` on; the ids of messages follow `mark`."""
    records = [new_record(entry, id, now) for id, entry in enumerate(entries, first)]
    if entries and tube.kind.hand_out == DELIVER:
        ms, seq = mark
        return [replace(record, address=shown_mark((ms, place))) for place, record in enumerate(records, seq + 1)]
    return records


def plain_put(runner: ScriptRunner, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
    """A function that stores a payload faster than a put: everything that all payloads share is packed once.

    None if a task's rank depends on its time, its id or other tasks.
    """
    if not stands_alone(tube, entry):
        return None
    request, make = plain_request(runner, tube, entry), record_maker(entry)

    def put(payload: bytes) -> Record:
        created, id = runner.known(tube, runner.servers.run(request(payload), idempotent=False))
        return make(id, created, payload)

    return put


def plain_request(runner: ScriptRunner, tube: Tube, entry: Entry, more: int = 0) -> Callable[..., Request]:
    """A function that makes a request of put_plain from a payload and, packed, that many more arguments."""
    shape = runner.shape(tube)
    head, rest = new_pieces(record_maker(entry)(0, 0, b""))
    ttl, second = "" if entry.ttl is None else entry.ttl, sortable(entry.rank2.base) if "2" in shape.letters else b""
    words = shape.packed + packed(head, ttl, rest, entry.rank1.base, second)
    bare = runner.script_request(runner.script("put_plain", shape.sort), tube.no, 9 + more, b"")
    script, keys, before = bare.script, bare.keys, cast(bytes, bare.command)

    def request(payload: bytes, after: bytes = b"") -> Request:
        now = packed(runner.moment())
        command = b"%b%b%b$%d\r\n%b\r\n%b" % (before, now, words, len(payload), payload, after)
        return Request(script, keys, command)

    return request
