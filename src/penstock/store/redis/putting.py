"""Entries on their way into a put script, and the records that come of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.entry import plain_entry
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store.redis.shards import Shard

_encode = msgspec.msgpack.Encoder().encode
Spec = tuple[object, ...]


def pack_entries(entries: Sequence[Entry]) -> list[bytes]:
    """The arguments of a put: runs of neighbours that differ in their payload only, then the payloads."""
    runs: list[list[object]] = []
    last: Spec | None = None
    for entry in entries:
        spec = _spec(entry)
        if spec == last:
            runs[-1][1] += 1  # type: ignore[operator]
        else:
            runs.append([spec, 1])
            last = spec
    return [_encode(runs), *[entry.payload for entry in entries]]


def tied(entries: Sequence[Entry]) -> bool:
    """Whether any of them has an address, a reply tube or a group."""
    # Not any(): this stands before every put.
    return True in [
        entry.address is not None or entry.group is not None or entry.reply_to is not None for entry in entries
    ]


def pack_linked(tube: Tube, entries: Sequence[Entry]) -> list[bytes]:
    """The arguments of a put with addresses, reply tubes or groups: what the tube's links need, entries, payloads."""
    packed = [
        (_spec(entry), entry.address, entry.duplicate, entry.reply_to, entry.group, entry.group_no) for entry in entries
    ]
    return [pack_facts(tube), _encode(packed), *[entry.payload for entry in entries]]


def pack_facts(tube: Tube) -> bytes:
    """What scripts must know of a tube whose tasks have links: how long ends are kept, its name, and a plain task.

    A shard has no name, so that what replies to its own tube goes to the right one of its shards; but which it is of
    how many, and its floor, for the ids in replies.
    """
    spec = _spec(plain_entry(tube, b""))
    if isinstance(tube, Shard):
        return _encode((tube.retention, "", spec, tube.of, tube.place, tube.floor))
    return _encode((tube.retention, tube.name, spec))


def pack_plain(tube: Tube) -> bytes:
    """What a put without options says."""
    return _encode(_spec(plain_entry(tube, b"")))


def _spec(entry: Entry) -> Spec:
    one, two = entry.rank1, entry.rank2
    return (
        one.base, one.clock, one.newest, two.base, two.clock, two.newest, entry.pri, entry.utube, entry.ttl, entry.ttr,
        entry.delay, entry.max_attempts, entry.callback,
    )  # fmt: skip


def made(entries: Sequence[Entry], first: int, now: int) -> list[Record]:
    """The records as a put script stored them from that id on."""
    return [_made(entry, id, now) for id, entry in enumerate(entries, first)]


def laned(tube: Tube, records: list[Record], states: bytes, ranks: list[bytes]) -> list[Record]:
    """The same in a micro-queue tube, where the script decided who may be taken."""
    return [
        msgspec.structs.replace(record, state=chr(state), rank2=float(rank) if tube.fair else record.rank2)
        for record, state, rank in zip(records, states, ranks, strict=True)
    ]


def _made(entry: Entry, id: int, now: int) -> Record:
    delay = entry.delay
    expires = None if entry.ttl is None else now + entry.ttl + delay
    return Record(
        id, "~" if delay else "r", entry.rank1.value(id, now), entry.rank2.value(id, now), entry.pri, entry.utube,
        0, 0, now, None, expires, now + delay if delay else expires, entry.ttr, entry.max_attempts, None, None,
        entry.callback, entry.payload,
    )  # fmt: skip
