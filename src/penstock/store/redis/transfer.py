"""The store's calls for moving tubes between stores.

A sealed tube keeps its name and its keys, but not `last` of meta, so that no script finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

import msgspec

from penstock.core.group import OVER, Group
from penstock.core.ids import Mark
from penstock.core.options import Tube
from penstock.core.shards import home_of
from penstock.core.task import NO_UTUBE, Record
from penstock.errors import StoreCorrupt, TubeBusy
from penstock.store.moving import Kept, Parcel, Tally, is_arriving, plain_name, seal_refused
from penstock.store.redis import puts, queries
from penstock.store.redis.checks import unreadable
from penstock.store.redis.connection import Argument, Reply
from penstock.store.redis.encoding import decode, read_group, read_outcome, task_id, task_key
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.queries import Listing
from penstock.store.redis.runner import Runner
from penstock.store.redis.tubes import Shards, Tubes
from penstock.store.refusals import name_in_use

log = logging.getLogger("penstock")
_encode = msgspec.msgpack.Encoder().encode
# The counters that activate_tube adds to; the first four are of removed tasks.
_CALLS = ("ack", "fail", "delete", "ttl", "take", "release", "bury", "kick", "touch", "ttr", "delay")
# What freeze_tube in lua/transfer.lua returns for a tube that was paused or resumed since.
_OTHER_TURN = 3


class TransferCalls:
    """Keeps the contract of `store.moving`."""

    _runner: Runner
    _tubes: Tubes
    _outbox: Outbox
    _shards: Shards
    _listing: Listing

    def seal_tube(self, tube: Tube, to: str) -> None:
        """As the contract says; the first shard is sealed last, which seals the tube.

        A client that dies on the way leaves some shards sealed: whoever pauses or resumes the tube unseals them. That
        begins a new turn, and a call that tries to seal the tube in an earlier turn is refused.
        """
        first, *others = self._shards.of(tube)
        turn = self._at_rest(tube) if others else 0
        for shard in others:
            self._seal(shard, to, turn)
        self._seal(first, to, turn, checked=bool(others))

    def _at_rest(self, tube: Tube) -> int:
        """The turn of a sharded tube without leases; checked first, so that shards are rarely sealed in vain."""
        keys = [self._runner.keys.name(shard.no, "taken") for shard in self._shards.of(tube)]
        if any(self._runner.servers.command_all([(key, (b"EXISTS", key)) for key in keys])):
            raise seal_refused(tube, True)
        key = self._runner.keys.name(self._shards.of(tube)[0].no, "meta")
        return int(cast("bytes | None", self._runner.servers.command(key, b"HGET", key, b"turn")) or 0)

    def _seal(self, stored: Tube, to: str, turn: int, *, checked: bool = False) -> None:
        reply = self._runner.on_tag("freeze_tube", stored.no, to, turn, int(checked), idempotent=True)
        refused = self._runner.known(stored, cast("list[Reply]", reply))[1]
        if refused == _OTHER_TURN:
            raise TubeBusy(f"tube {stored.name} was paused or resumed meanwhile: move it again")
        if refused:
            raise seal_refused(stored, refused == 1)

    def erase_tube(self, tube: Tube) -> None:
        for stored in reversed(self._shards.of(tube)):
            self._runner.on_tag("erase_tube", stored.no, idempotent=True)

    def load_sealed(self) -> list[Tube]:
        return self._tubes.sealed()

    def forget_tube(self, tube: Tube) -> None:
        self._tubes.forget(msgspec.structs.replace(tube, name=plain_name(tube.name)))
        for stored in self._shards.of(tube):
            key = self._runner.keys.name(stored.no, "meta")
            self._runner.servers.command(key, b"DEL", key)

    def tally(self, tube: Tube) -> Tally:
        """As the contract says; while a sharded tube is imported, the last id up to which every shard is complete."""
        shards = self._shards.of(tube)
        keys = [self._runner.keys.name(stored.no, "meta") for stored in shards]
        words = (b"last", b"sealed", b"ms", b"seq")
        replies = self._runner.servers.command_all([(key, (b"HMGET", key, *words)) for key in keys])
        counts = queries.count(self._runner, shards, sealed=True)
        found = cast("list[list[bytes | None]]", replies)
        ids = [
            self._shards.public_id(stored.no, int(last or sealed or 0))
            for stored, (last, sealed, *_) in zip(shards, found, strict=True)
        ]
        mark = cast(Mark, tuple(int(number or 0) for number in found[0][2:]))
        return Tally(min(ids) if is_arriving(tube.name) else max(ids), mark, counts)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        """As the contract says; unreadable tasks are buried with their bytes, or left out if the kind has no leases."""
        for page in self._listing.pages(tube, "tasks", after, limit):
            read = (_read(tube, found.id, found.value) for found in page)
            if records := [record for record in read if record is not None]:
                return records
        return []

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        fields = dict(queries.scan(self._runner, tube, "groups"))  # a scan may return a field twice
        groups = (read_group(task_id(field[1:]), value) for field, value in fields.items() if field[:1] == b"g")
        found = sorted((group for group in groups if group.no > after and group.state not in OVER), key=_number)
        for group in found[:limit]:
            group.end, group.cancel = (fields.get(letter + task_key(group.no)) for letter in (b"e", b"c"))
        return found[:limit]

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        for page in self._listing.pages(tube, "outcomes", after, limit):
            read = [(found, *read_outcome(found.value)) for found in page]
            keys = [self._runner.keys.name(found.shard.no, "kept") for found in page]
            names = [b"o" + task_key(found.own) + address.encode() for found, address, _ in read]
            untils = self._runner.servers.command_all(
                [(key, (b"ZSCORE", key, name)) for key, name in zip(keys, names, strict=True)]
            )
            pairs = zip(read, cast("list[bytes | None]", untils), strict=True)
            if kept := [Kept(one.id, address, ending, int(float(at))) for (one, address, ending), at in pairs if at]:
                return kept
        return []

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        """As the contract says; each shard of a sharded tube gets its part, and the id up to which all is imported."""
        shards = self._shards.of(tube)
        parts = [parcel] if len(shards) == 1 else _parts(tube, parcel)
        for stored, part in zip(shards, parts, strict=True):
            self._adopt(stored, part)

    def _adopt(self, stored: Tube, parcel: Parcel) -> None:
        if any(record.reply_to is not None for record in parcel.records):
            self._outbox.register(stored)
        tied = parcel.outcomes or any(_tied(record) for record in parcel.records)
        facts = puts.pack_facts(stored) if tied and stored.kind.leased else b""
        tasks = [_task(record) for record in parcel.records]
        outcomes = [_outcome(kept) for kept in parcel.outcomes]
        results = [kept.ending.result for kept in parcel.outcomes if kept.ending.result is not None]
        data = [record.payload for record in parcel.records] + results
        packed: list[Argument] = [facts, parcel.upto, _encode(tasks), _encode(outcomes), *data]
        self._runner.on_tube("import_batch", stored, *packed, idempotent=True)

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        """As the contract says; the counters of a sharded tube go to its first shard."""
        self._land(tube, name, tally, totals)
        if not self._tubes.rename(tube, name, tally.last_id if tube.shards > 1 else 0):
            raise name_in_use(name)

    def _land(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        self._shards.learn(tube.no, tally.last_id)
        first, *others = self._shards.of(msgspec.structs.replace(tube, name=name))
        for shard in others:
            self._land_stored(shard, "", (0, 0), {}, {})
        here = queries.count(self._runner, others).put if others else 0
        calls = {call: getattr(tally.counts, call) for call in _CALLS}
        self._land_stored(first, tally.last_id - tally.counts.put + here, tally.mark, calls, totals)

    def _land_stored(
        self, stored: Tube, unput: int | str, mark: Mark, calls: Mapping[str, int], totals: Mapping[int, int]
    ) -> None:
        gone = sum(calls.get(call, 0) for call in _CALLS[:4])
        words = [word for pairs in (calls, totals) for pair in pairs.items() for word in pair]
        arguments = (puts.pack_facts(stored), *mark, unput, -gone, len(calls), *words)
        self._runner.on_tube("activate_tube", stored, *arguments, idempotent=True)


def _number(group: Group) -> int:
    return group.no


def _read(tube: Tube, id: int, value: bytes) -> Record | None:
    try:
        return decode(id, value)
    except StoreCorrupt as error:
        log.warning("tube %s: %s", tube.name, error)
        if not tube.kind.leased:
            return None
    return msgspec.structs.replace(unreadable(id, value, 0), utube="" if tube.kind.per_utube else None)


def _parts(tube: Tube, parcel: Parcel) -> list[Parcel]:
    """The part of a parcel that goes to each shard of a tube."""
    count, laned = tube.shards, tube.kind.per_utube
    records: list[list[Record]] = [[] for _ in range(count)]
    outcomes: list[list[Kept]] = [[] for _ in range(count)]
    for record in parcel.records:
        utube = (record.utube or NO_UTUBE) if laned else None
        records[home_of(record.id, utube, record.address, count)].append(record)
    for kept in parcel.outcomes:
        # With micro-queues, an address is looked up in all shards.
        outcomes[home_of(kept.id, None, None if laned else kept.address, count)].append(kept)
    return [Parcel(own, parcel.upto, ends) for own, ends in zip(records, outcomes, strict=True)]


def _tied(record: Record) -> bool:
    return record.address is not None or record.reply_to is not None or record.group_no is not None


def _task(record: Record) -> tuple[object, ...]:
    return (
        record.id, record.state, record.rank1, record.rank2, record.pri, record.utube, record.attempts, record.lease,
        record.created, record.taken, record.expires, record.at, record.ttr, record.max_attempts, record.reason,
        record.callback, record.address, record.reply_to, record.group, record.group_no,
    )  # fmt: skip


def _outcome(kept: Kept) -> tuple[object, ...]:
    ending = kept.ending
    has = ending.result is not None
    return (kept.id, kept.address, ending.status, ending.error, ending.code, kept.until, has)
