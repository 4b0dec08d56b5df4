"""The store's calls for moving tubes between stores.

A sealed tube keeps its name and its keys, but not `last` of meta, so that no script finds it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import cast

import msgspec

from penstock.core.group import OVER, Group
from penstock.core.ids import Mark
from penstock.core.options import Tube
from penstock.core.refusals import name_in_use
from penstock.core.results import STATE_COUNTER
from penstock.core.shards import home_of
from penstock.core.task import NO_UTUBE, Record
from penstock.core.transfer import Kept, Parcel, Tally, is_arriving, plain_name, seal_refused
from penstock.errors import StoreCorrupt, TubeBusy
from penstock.store.redis import puts, queries
from penstock.store.redis.checks import unreadable
from penstock.store.redis.connection import Reply
from penstock.store.redis.encoding import (
    decode,
    encode,
    index_entries,
    pack_outcome,
    read_group,
    read_outcome,
    task_id,
    task_key,
)
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.queries import Pages
from penstock.store.redis.runner import Runner, Write
from penstock.store.redis.tubes import Shards, Tubes

log = logging.getLogger("penstock")
# The counters that an imported tube takes over; the first four are of removed tasks.
_CALLS = ("ack", "fail", "delete", "ttl", "take", "release", "bury", "kick", "touch", "ttr", "delay")
# What freeze_tube in lua/transfer.lua returns for a tube that was paused or resumed since.
_OTHER_TURN = 3


class TransferCalls:
    """Keeps the contract of `store.contract.TransferStore`."""

    _runner: Runner
    _tubes: Tubes
    _outbox: Outbox
    _shards: Shards
    _listing: Pages

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
        groups = (group for group in self._all_groups(tube) if group.no > after and group.state not in OVER)
        return sorted(groups, key=lambda group: group.no)[:limit]

    def _all_groups(self, stored: Tube) -> list[Group]:
        fields = dict(queries.scan(self._runner, stored, "groups"))  # a scan may return a field twice
        groups = [read_group(task_id(field[1:]), value) for field, value in fields.items() if field[:1] == b"g"]
        for group in groups:
            group.end, group.cancel = (fields.get(letter + task_key(group.no)) for letter in (b"e", b"c"))
        return groups

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
        """Store the part of one stored tube, in one step; what is here already is left as it is."""
        if any(record.reply_to is not None for record in parcel.records):
            self._outbox.register(stored)
        while True:
            [last] = self._fields(stored, "meta", "last")
            if last is None:
                raise self._runner.missing(stored)
            writes = self._imported(stored, parcel, int(last))
            if self._runner.write_items("import", stored, [([("meta", "last", last)], writes)], idempotent=True):
                return

    def _imported(self, stored: Tube, parcel: Parcel, before: int) -> list[Write]:
        fresh = [record for record in parcel.records if record.id > before]
        last = max([before, parcel.upto, *(record.id for record in fresh)])
        names = [*(kept.address for kept in parcel.outcomes)]
        held = dict(zip(names, self._fields(stored, "addresses", *names), strict=True))
        held |= {record.address: task_key(record.id) for record in fresh if record.address is not None}
        writes: list[Write] = []
        for kept in parcel.outcomes:
            key, until = task_key(kept.id), kept.until
            writes.append(("HSET", "outcomes", key, pack_outcome(kept.address, kept.ending)))
            writes.append(("ZADD", "kept", until, b"o" + key + kept.address.encode()))
            held[kept.address] = max(held[kept.address] or b"", key)
        writes += [("HSET", "addresses", address, key) for address, key in held.items() if key is not None]
        second, counts = "2" in self._runner.shape(stored).letters, Counter[str]()
        for record in fresh:
            writes.append(("HSET", "tasks", task_key(record.id), encode(record)))
            entries = index_entries(stored, record, second=second)
            writes += [("ZADD", index, repr(score), member) for index, member, score in entries]
            counts[STATE_COUNTER[record.state]] += 1
            # It stands for a ready task, see penstock.core.transfer.
            counts["delay"] -= record.state == "~" and record.at is not None and record.at <= record.created
        added = Counter(record.group_no for record in fresh if record.group_no is not None)
        writes += self._group_writes(stored, {no: (more, more) for no, more in added.items()})
        counts["skipped"] = last - before - len(fresh)
        del counts["ready"]
        writes += [("HINCRBY", "meta", name, by) for name, by in counts.items()]
        if stored.kind.leased and (parcel.outcomes or any(_tied(record) for record in fresh)):
            writes.append(("HSETNX", "meta", "facts", puts.pack_facts(stored)))
        if any(record.reply_to is not None for record in fresh):
            writes.append(("HSETNX", "meta", "posted", 0))
        return [*writes, ("HSET", "meta", "last", last)]

    def _group_writes(self, stored: Tube, more: Mapping[int, tuple[int, int]]) -> list[Write]:
        """Groups of which more tasks were put, and more are left. Nobody else changes them during an import."""
        names = [b"g" + task_key(no) for no in more]
        groups = zip(names, self._fields(stored, "groups", *names), more.values(), strict=True)
        return [
            ("HSET", "groups", name, old[:1] + _raised(old[1:7], put) + _raised(old[7:13], left) + old[13:])
            for name, old, (put, left) in groups
            if old is not None
        ]

    def _fields(self, stored: Tube, part: str, *names: str | bytes) -> list[bytes | None]:
        key = self._runner.keys.name(stored.no, part)
        return cast("list[bytes | None]", self._runner.servers.command(key, b"HMGET", key, *names)) if names else []

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
        facts, ms, seq, skipped = self._fields(stored, "meta", "facts", "ms", "seq", "skipped")
        # Tasks that were done in the other store are counted by its counters from now on.
        gone = sum(calls.get(call, 0) for call in _CALLS[:4])
        writes: list[Write] = [
            ("HSET", "meta", "landed", 1, "unput", unput if unput != "" else int(skipped or 0)),
            *(("HINCRBY", "meta", name, by) for name, by in {**calls, "skipped": -gone}.items()),
        ]
        if facts is not None:
            writes.append(("HSET", "meta", "facts", puts.pack_facts(stored)))
        if mark > (int(ms or 0), int(seq or 0)):
            writes.append(("HSET", "meta", "ms", mark[0], "seq", mark[1]))
        groups = {group.no: group.total for group in self._all_groups(stored)}
        writes += self._group_writes(stored, {no: (total - groups.get(no, 0), 0) for no, total in totals.items()})
        self._runner.write_items("import", stored, [([("meta", "landed", None)], writes)], idempotent=True)


def _raised(number: bytes, by: int) -> bytes:
    return (int.from_bytes(number, "big") + by).to_bytes(6, "big")


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
