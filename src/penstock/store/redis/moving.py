"""The store's calls by which tubes leave and arrive.

A sealed tube keeps its name, and its keys without `last` of meta, so that no script finds it.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import cast

import msgspec

from penstock.core.group import OVER, Group
from penstock.core.ids import Mark
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.errors import StoreCorrupt, UnsupportedOption
from penstock.store.moving import Kept, Parcel, Tally, plain_name, seal_refused
from penstock.store.redis import finding, putting
from penstock.store.redis.keys import task_id, task_key
from penstock.store.redis.link import Argument, Reply
from penstock.store.redis.links import read_group, read_outcome
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.record import UNREADABLE, decode
from penstock.store.redis.runner import Runner
from penstock.store.redis.shards import Shards
from penstock.store.redis.tubes import Tubes
from penstock.store.refusals import name_in_use

log = logging.getLogger("penstock")
_encode = msgspec.msgpack.Encoder().encode
# The counters that landing adds to; the first four are of tasks that are gone.
_CALLS = ("ack", "fail", "delete", "ttl", "take", "release", "bury", "kick", "touch", "ttr", "delay")


class MovingCalls:
    """Keeps the contract of `store.moving`."""

    _runner: Runner
    _tubes: Tubes
    _outbox: Outbox
    _shards: Shards
    #: The ids of the tube that is read now, or of its outcomes: Redis keeps neither in order.
    _listed: dict[tuple[int, str], array[int]]

    def seal_tube(self, tube: Tube, to: str) -> None:
        reply = cast("list[Reply]", self._runner.on_tag("seal", tube.no, to, again=True))
        refused = self._runner.known(tube, reply)[1]
        if refused:
            raise seal_refused(tube, refused == 1)

    def erase_tube(self, tube: Tube) -> None:
        for stored in self._shards.of(tube):
            self._runner.on_tag("erase", stored.no, again=True)

    def load_sealed(self) -> list[Tube]:
        return self._tubes.sealed()

    def forget_tube(self, tube: Tube) -> None:
        self._tubes.forget(msgspec.structs.replace(tube, name=plain_name(tube.name)))
        key = self._runner.keys.name(tube.no, "meta")
        self._runner.servers.command(key, b"DEL", key)

    def tally(self, tube: Tube) -> Tally:
        """As the contract says; UnsupportedOption for a tube of several shards, so that whoever begins here is told."""
        if tube.shards > 1:
            what = f"tube {plain_name(tube.name)} has {tube.shards} shards in this store, which its ids tell"
            remedy = "let it run empty, and create it anew where it should be"
            raise UnsupportedOption(f"{what}: it cannot be exported, imported or moved; {remedy}")
        key = self._runner.keys.name(tube.no, "meta")
        marks = cast("list[bytes | None]", self._runner.servers.command(key, b"HMGET", key, b"ms", b"seq"))
        mark = cast(Mark, tuple(int(number or 0) for number in marks))
        counts = finding.count(self._runner, [tube], sealed=True)
        return Tally(counts.put, mark, counts)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        """As the contract says; what cannot be read is buried with its bytes, or, where nothing is, left out."""
        while ids := self._ids(tube, "tasks", after, limit):
            found = (_read(tube, id, value) for id, value in self._values(tube, "tasks", ids))
            if records := [record for record in found if record is not None]:
                return records
            after = ids[-1]  # all of these went while the tube was read
        return []

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        fields = dict(finding.scan(self._runner, tube, "groups"))  # a scan may show one twice
        groups = (read_group(task_id(field[1:]), value) for field, value in fields.items() if field[:1] == b"g")
        found = sorted((group for group in groups if group.no > after and group.state not in OVER), key=_number)
        for group in found[:limit]:
            group.end, group.cancel = (fields.get(letter + task_key(group.no)) for letter in (b"e", b"c"))
        return found[:limit]

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        key = self._runner.keys.name(tube.no, "kept")
        while ids := self._ids(tube, "outcomes", after, limit):
            found = [(id, *read_outcome(value)) for id, value in self._values(tube, "outcomes", ids)]
            names = [b"o" + task_key(id) + address.encode() for id, address, _ in found]
            untils = self._runner.servers.command(key, b"ZMSCORE", key, *names) if names else []
            pairs = zip(found, cast("list[bytes | None]", untils), strict=True)
            if kept := [Kept(*outcome, int(float(until))) for outcome, until in pairs if until]:
                return kept
            after = ids[-1]
        return []

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        if any(record.reply_to is not None for record in parcel.records):
            self._outbox.register(tube)
        tied = parcel.outcomes or any(_tied(record) for record in parcel.records)
        facts = putting.pack_facts(tube) if tied and tube.kind.leased else b""
        tasks = [_task(record) for record in parcel.records]
        outcomes = [_outcome(kept) for kept in parcel.outcomes]
        results = [kept.ending.result for kept in parcel.outcomes if kept.ending.result is not None]
        data = [record.payload for record in parcel.records] + results
        packed: list[Argument] = [facts, parcel.upto, _encode(tasks), _encode(outcomes), *data]
        self._runner.on_tube("adopt", tube, *packed, again=True)

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        calls = {call: getattr(tally.counts, call) for call in _CALLS}
        gone = sum(calls[call] for call in _CALLS[:4])
        named = msgspec.structs.replace(tube, name=name)
        words = [word for pairs in (calls, totals) for pair in pairs.items() for word in pair]
        arguments = (putting.pack_facts(named), *tally.mark, -gone, len(calls), *words)
        self._runner.known(tube, cast("list[Reply]", self._runner.on_tag("land", tube.no, *arguments, again=True)))
        if not self._tubes.rename(tube, name):
            raise name_in_use(name)

    def _ids(self, tube: Tube, part: str, after: int, limit: int) -> list[int]:
        """The next ids in order. They are listed once for all pages, which costs eight bytes each."""
        which = tube.no, part
        if after == 0 or which not in self._listed:
            found = {task_id(field) for field, _ in finding.scan(self._runner, tube, part)}
            self._listed = {which: array("Q", sorted(found))}
        ids = self._listed[which]
        start = bisect_right(ids, after)
        return ids[start : start + limit].tolist()

    def _values(self, tube: Tube, part: str, ids: list[int]) -> list[tuple[int, bytes]]:
        if not ids:
            return []
        key = self._runner.keys.name(tube.no, part)
        values = self._runner.servers.command(key, b"HMGET", key, *map(task_key, ids))
        pairs = zip(ids, cast("list[bytes | None]", values), strict=True)
        return [(id, value) for id, value in pairs if value is not None]


def _number(group: Group) -> int:
    return group.no


def _read(tube: Tube, id: int, value: bytes) -> Record | None:
    try:
        return decode(id, value)
    except StoreCorrupt as error:
        log.warning("tube %s: %s", tube.name, error)
        if not tube.kind.leased:
            return None
    # As bury_unreadable of lua/step.lua makes it: with its first byte the data is never taken for what was put.
    return Record(
        id, "!", 0, 0, 0, "" if tube.kind.per_utube else None, 0, 0, 0, None, None, None, None, None, None, UNREADABLE,
        None, b"\xff" + value,
    )  # fmt: skip


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
