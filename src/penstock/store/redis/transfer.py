"""The store's calls for moving tubes between stores.

A frozen tube keeps its name and its keys, but not `last` of meta, so that no script finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import cast

import msgspec

from penstock.core.ids import Mark
from penstock.core.options import Tube
from penstock.core.refusals import name_in_use
from penstock.core.shards import home_of, shard_of
from penstock.core.task import NO_UTUBE, Record
from penstock.core.transfer import (
    GroupTotals,
    ImportBatch,
    Kept,
    TubeCounters,
    freeze_refused,
    is_frozen,
    is_importing,
    plain_name,
)
from penstock.errors import TubeBusy
from penstock.store.redis import puts
from penstock.store.redis import redis_queries as queries
from penstock.store.redis.encoding import encode, pack_outcome, task_key
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.redis_connection import Reply
from penstock.store.redis.runner import Runner
from penstock.store.redis.tubes import Shards, Tubes

# The counters that an imported tube takes over; the first four count removed tasks.
_CALLS = ("ack", "fail", "delete", "ttl", "take", "release", "bury", "kick", "touch", "ttr", "delay")
# What freeze_tube in lua/transfer.lua returns for a tube that was paused or resumed since.
_OTHER_TURN = 3


class TransferCalls:
    """The transfer methods of `engine.store.Store`."""

    _runner: Runner
    _tubes: Tubes
    _outbox: Outbox
    _shards: Shards

    def freeze_tube(self, tube: Tube, to: str) -> None:
        """As the contract says; the first shard is frozen last, which freezes the tube.

        A client that dies in between leaves some shards frozen; the next pause or resume of the tube unfreezes them.
        This begins a new turn, and a freeze that began in an earlier turn is refused.
        """
        first, *others = self._shards.of(tube)
        turn = self._at_rest(tube) if others else 0
        for shard in others:
            self._freeze(shard, to, turn)
        self._freeze(first, to, turn, checked=bool(others))

    def _at_rest(self, tube: Tube) -> int:
        """The turn of a sharded tube. Raises TubeBusy if tasks are leased, so that shards are rarely frozen in vain."""
        shards = self._shards.of(tube)
        if any(self._runner.command_each(shards, "taken", b"EXISTS")):
            raise freeze_refused(tube, True)
        return int(cast("bytes | None", self._runner.command(shards[0].no, "meta", b"HGET", b"turn")) or 0)

    def _freeze(self, stored: Tube, to: str, turn: int, *, checked: bool = False) -> None:
        reply = self._runner.on_tag("freeze_tube", stored.no, to, turn, int(checked), idempotent=True)
        refused = self._runner.known(stored, cast("list[Reply]", reply))[1]
        if refused == _OTHER_TURN:
            raise TubeBusy(f"tube {stored.name} was paused or resumed during the move: move it again")
        if refused:
            raise freeze_refused(stored, refused == 1)

    def erase_tube(self, tube: Tube, *, forget: bool = False) -> None:
        for stored in reversed(self._shards.of(tube)):
            self._runner.on_tag("erase_tube", stored.no, idempotent=True)
        if forget:
            self._forget(tube)

    def _forget(self, tube: Tube) -> None:
        self._tubes.forget(msgspec.structs.replace(tube, name=plain_name(tube.name)))
        for stored in self._shards.of(tube):
            self._runner.command(stored.no, "meta", b"DEL")

    def _counters(self, tube: Tube, utubes: Sequence[str]) -> TubeCounters:
        """As the contract says; during an import of a sharded tube, the last id up to which every shard is complete."""
        shards = self._shards.of(tube)
        found = queries.read_counters(self._runner, shards, frozen=is_frozen(tube))
        ids = [stored.public_id(part.last_id) for stored, part in zip(shards, found, strict=True)]
        last = min(ids) if is_importing(tube.name) else max(ids)
        micro_queues = [
            queries.read_queue(self._runner, shards[shard_of(utube, len(shards))], utube) for utube in utubes
        ]
        return TubeCounters(last, found[0].mark, queries.add_up(found), found[0].paused, micro_queues)

    def _counters_of(self, tubes: Sequence[Tube]) -> dict[int, TubeCounters]:
        waits = queries.read_waits(self._runner, [part for tube in tubes for part in self._shards.of(tube)])
        live = [tube for tube in tubes if all(part.no in waits for part in self._shards.of(tube))]
        counted = iter(queries.read_counters(self._runner, [part for tube in live for part in self._shards.of(tube)]))
        found: dict[int, TubeCounters] = {}
        for tube in live:
            parts = list(islice(counted, tube.shards))
            longest = max(waits[part.no] for part in self._shards.of(tube))
            found[tube.no] = msgspec.structs.replace(parts[0], counts=queries.add_up(parts), waits=longest)
        return found

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        """As the contract says; each shard gets its part, and the id up to which everything is imported."""
        shards = self._shards.of(tube)
        for stored, part in zip(shards, [batch] if len(shards) == 1 else _parts(tube, batch), strict=True):
            if any(record.reply_to is not None for record in part.records):
                self._outbox.register(stored)
            words = [word for kept in part.outcomes for word in (b"o" + task_key(kept.id), pack_outcome(kept))]
            for record in part.records:
                words += [b"x" + task_key(record.id), record.errors] if record.errors else []
            head = (puts.pack_facts(stored), part.upto, len(words))
            words += [word for record in part.records for word in (task_key(record.id), encode(record))]
            self._runner.on_tube("import", stored, *head, *words, idempotent=True)

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        """As the contract says; the first shard of a sharded tube gets the counters."""
        self._activate(tube, name, counters, totals)
        if not self._tubes.rename(tube, name, counters.last_id if tube.shards > 1 else 0):
            raise name_in_use(name)

    def _activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        self._shards.learn(tube.no, counters.last_id)
        first, *others = self._shards.of(msgspec.structs.replace(tube, name=name))
        for shard in others:
            self._activate_stored(shard, "", (0, 0), {}, {})
        here = queries.add_up(queries.read_counters(self._runner, others)).put if others else 0
        calls = {call: getattr(counters.counts, call) for call in _CALLS}
        # From now on, the other store's counters count the tasks that were removed there.
        calls["skipped"] = -sum(calls[call] for call in _CALLS[:4])
        self._activate_stored(first, counters.last_id - counters.counts.put + here, counters.mark, calls, totals)

    def _activate_stored(
        self, stored: Tube, unput: int | str, mark: Mark, calls: Mapping[str, int],
        totals: GroupTotals,
    ) -> None:  # fmt: skip
        packed = msgspec.msgpack.encode(calls), msgspec.msgpack.encode([(no, *counts) for no, counts in totals.items()])
        self._runner.on_tube("activate", stored, puts.pack_facts(stored), unput, *mark, *packed, idempotent=True)


def _parts(tube: Tube, batch: ImportBatch) -> list[ImportBatch]:
    """The part of a batch that goes to each shard of a tube."""
    count, per_utube = tube.shards, tube.kind.per_utube
    records: list[list[Record]] = [[] for _ in range(count)]
    outcomes: list[list[Kept]] = [[] for _ in range(count)]
    for record in batch.records:
        utube = (record.utube or NO_UTUBE) if per_utube else None
        records[home_of(record.id, utube, record.address, count)].append(record)
    for kept in batch.outcomes:
        # With micro-queues, an address is looked up in all shards.
        outcomes[home_of(kept.id, None, None if per_utube else kept.address, count)].append(kept)
    return [ImportBatch(own, batch.upto, ends) for own, ends in zip(records, outcomes, strict=True)]
