"""The store's calls on sharded tubes: each calls one shard or all, and returns one answer for the whole tube.

A call is one atomic step in each shard that it changes, but not across shards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count as counting
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from penstock.core.ending import OutcomeLookup
from penstock.core.group import Group
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.refusals import partly_applied, refuse_busy
from penstock.core.results import Blocked, Effects, Finding, Lease, Settled, Stored, Taken
from penstock.core.select import Find, Listing, Sweep
from penstock.core.shards import home_of, last_up_to, shard_of
from penstock.core.stored_shard import public
from penstock.core.task import Entry, Record
from penstock.core.transfer import StoredOutcome, freeze_refused
from penstock.errors import DuplicateAddress, StoreError, TubeBusy
from penstock.store.redis.location import locate
from penstock.store.redis.redis_store import RedisStore
from penstock.store.redis.tubes import by_tube

P = TypeVar("P", Record, Group, StoredOutcome)
R = TypeVar("R", bound="Record | StoredOutcome | None")


class ShardedStore(RedisStore):
    """Implements `engine.store.Store` for tubes with and without shards."""

    #: Round-robin for puts that may go to any shard.
    _turns: Iterator[int] = counting(random.randrange(2**16))

    # tubes

    def drop_tube(self, tube: Tube) -> Effects:
        """See `Store.drop_tube`. A client that dies during the call leaves the tube paused, or without its name."""
        if tube.shards == 1:
            return super().drop_tube(tube)
        effects, paused, shards = Effects(), self._is_paused(tube), self._tubes.shards(tube)
        self.write_tube(tube, paused=True)  # so that nothing is taken from one shard while another is removed
        try:
            for shard in shards:
                self._apply_all_due(None, shard, effects)
            waiting = any(self._runner.command_each(shards, "waits", b"EXISTS"))
            refuse_busy(tube, taken=self.counters(tube).counts.taken, waiting=waiting)
        except BaseException:
            self.write_tube(tube, paused=paused)
            raise
        self._drop(shards[0], anyhow=True)
        self._tubes.forget(tube)
        for shard in shards:
            self._outbox.drain(shard.no, effects)
        return effects

    def _is_paused(self, tube: Tube) -> bool:
        """Whether a tube is paused; works even if shards other than the first are frozen."""
        return self.counters(self._tubes.shards(tube)[0]).paused

    def freeze_tube(self, tube: Tube, to: str) -> None:
        """See `Store.freeze_tube`. The first shard is frozen last, which freezes the tube.

        A client that dies in between leaves some shards frozen; the next pause or resume of the tube unfreezes them.
        This begins a new turn, and a freeze that began in an earlier turn is refused.
        """
        if tube.shards == 1:
            return super().freeze_tube(tube, to)
        first, *others = shards = self._tubes.shards(tube)
        turn = int(self._runner.command(first.no, "meta", b"HGET", b"turn") or 0)
        try:
            if any(self._runner.command_each(shards, "taken", b"EXISTS")):
                raise freeze_refused(tube, True)  # before some shards are frozen
            for shard in others:
                self._freeze(shard, to, turn)
            self._freeze(first, to, turn, checked=True)
        except TubeBusy:
            self.write_tube(tube, paused=self._is_paused(tube))
            raise

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry]) -> Stored:
        """See `Store.put`. Atomic per shard: if one refuses its part, others may have stored theirs."""
        if tube.shards == 1:
            return super().put(tube, entries)
        turn = next(self._turns)
        shards, per_utube = self._tubes.shards(tube), tube.kind.per_utube
        parts = by_tube(shards[home_of(entry, per_utube, tube.shards, turn)] for entry in entries)
        records, effects = dict[int, Record](), Effects()
        # Shards that may refuse go first, so that a refusal rarely comes after another shard has stored its part.
        for shard, which in sorted(parts, key=lambda part: all(entries[place].address is None for place in part[1])):
            try:
                with partly_applied(list(records)):
                    stored = super().put(shard, [entries[place] for place in which])
            except DuplicateAddress as error:
                done = f"{len(records)} of {len(entries)} tasks are stored, in other shards of the tube"
                raise DuplicateAddress(f"{error}; {done}" if records else str(error)) from error
            records.update(zip(which, public(shard, stored.records), strict=True))
            effects.add(stored.effects)
        return Stored([records[place] for place in range(len(entries))], effects)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        shards, short = self._tubes.shards(tube), super().plain_put
        puts = [own for shard in shards if (own := short(shard, entry)) is not None]
        if tube.shards == 1 or not puts:
            return puts[0] if puts else None

        def put(payload: bytes) -> Record | None:
            home = next(self._turns) % tube.shards
            record = puts[home](payload)
            return record and public(self._tubes.shards(tube)[home], [record])[0]

        return put

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, waiter: int = 0,
    ) -> Taken:  # fmt: skip
        """See `Store.take`. The shards of a tube are taken from in order, beginning at a random one."""
        if len(tubes) == 1 and tubes[0].shards == 1:
            return super().take(tubes, count, handle, max_pri=max_pri, blocked=blocked)
        asked = [(shard, tube) for tube in tubes for shard in self._in_turn(tube)]
        first = super().take([shard for shard, _ in asked], count, handle, max_pri=max_pri, blocked=blocked)
        if first.tube is None:
            return first
        place = next(place for place, (shard, _) in enumerate(asked) if shard is first.tube)
        tube, records = asked[place][1], public(first.tube, first.records)
        for shard, of in asked[place + 1 :]:
            if of is tube and len(records) < count:
                try:
                    more = super().take([shard], count - len(records), handle, max_pri=max_pri)
                except StoreError:
                    break  # the caller must get what was taken before
                records += public(shard, more.records)
                first.effects.add(more.effects)
        return Taken(tube, records, first.wait_ms, True, first.effects)

    def _in_turn(self, tube: Tube) -> Sequence[Tube]:
        shards = self._tubes.shards(tube)
        start = random.randrange(len(shards)) if len(shards) > 1 else 0
        return [*shards[start:], *shards[:start]]

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False) -> Settled:
        if tube.shards == 1:
            return super().settle(tube, moves, brief=brief)
        records, effects = list[Record | None]([None] * len(moves)), Effects()
        places = self._tubes.locate(tube, [move.id for move in moves], "tasks")
        for shard, which in by_tube(stored for stored, _ in places):
            own = [
                replace(moves[place], id=id, seen=(seen := moves[place].seen) and replace(seen, id=id))
                for place in which
                for id in places[place][1:]
            ]
            with partly_applied(records):
                settled = super().settle(shard, own, brief=brief)
            for place, record in zip(which, public(shard, settled.records), strict=True):
                records[place] = record
            effects.add(settled.effects)
        return Settled(records, effects)

    def sweep(self, tube: Tube, sweep: Sweep) -> Settled:
        settled, limit = Settled([], Effects()), sweep.count
        for shard in self._tubes.shards(tube):
            left = None if limit is None else limit - len(settled.records)
            if left == 0 and limit:
                break
            with partly_applied(settled.records):
                part = super().sweep(shard, replace(sweep, count=left))
            settled.records.extend(public(shard, part.records))
            settled.effects.add(part.effects)
        return settled

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str]) -> list[Record | None]:
        if tube.shards == 1:
            return super().get(tube, keys)
        if keys and isinstance(keys[0], str):
            keys = [found.id or 0 for found in self.outcomes(tube, keys)]  # no task has the id 0
        records, places = dict[int, Record | None](), self._tubes.locate(tube, cast("Sequence[int]", keys), "tasks")
        for shard, which in by_tube(stored for stored, _ in places):
            found = public(shard, super().get(shard, [places[place][1] for place in which]))
            records.update(zip(which, found, strict=True))
        return [records[place] for place in range(len(keys))]

    def find(self, tube: Tube, listing: Listing) -> list[Record]:
        if tube.shards == 1:
            return super().find(tube, listing)

        def find(shard: Tube, after: int) -> list[Record]:
            own = replace(listing, after=after) if isinstance(listing, Find) else listing
            return RedisStore.find(self, shard, own)

        return self._merged(tube, listing.after if isinstance(listing, Find) else 0, find)[: listing.limit]

    def read_page(self, tube: Tube, what: type[P], after: int, limit: int) -> list[P]:
        """See `Store.read_page`. A page ends at the first id after which a shard may have more."""
        if tube.shards == 1 or what is Group:
            return super().read_page(tube, what, after, limit)
        share, ends = -(-limit // tube.shards), list[int]()

        def read(shard: Tube, after: int) -> list[Any]:
            page: list[Any] = RedisStore.read_page(self, shard, what, after, share)
            ends.extend(shard.public_id(item.id) for item in page[-1:])
            return page

        return [item for item in self._merged(tube, after, read) if item.id <= min(ends)]

    def _merged(self, tube: Tube, after: int, read: Callable[[Tube, int], list[R]]) -> list[R]:
        """Merge the tasks or outcomes of all shards above an id, in the order of public ids."""
        floor, found = self._tubes.floor(tube), list[R]()
        for home, shard in enumerate(self._tubes.shards(tube)):
            found += public(shard, read(shard, last_up_to(after, home, tube.shards, floor)))
        return sorted(found, key=lambda item: cast(Record, item).id)

    # addresses and groups

    def _find_outcome(self, tube: Tube, key: int | str) -> OutcomeLookup:
        shards = self._tubes.shards(tube)
        if isinstance(key, int):
            [(shard, key)] = self._tubes.locate(tube, [key], "tasks", "outcomes")
            shards = (shard,)
        elif not tube.kind.per_utube:  # else the shard depends on its micro-queue, which is unknown
            shards = (shards[shard_of(key, tube.shards)],)
        found = [RedisStore._find_outcome(self, shard, key) for shard in shards]
        # A live task hides the outcomes of earlier ones, and the last outcome those before it.
        return max(found, key=lambda each: (each.id is not None, each.last or 0))

    # sessions

    def held(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        own = [Lease(*self._tubes.locate(tube, [id], "tasks")[0], lease) for tube, id, lease in leases]
        return super().held(session, own)

    # details

    def ahead(self, tube: Tube, record: Record) -> int:
        """See `Store.ahead`. Counts in the shard of the task."""
        [(shard, own)] = self._tubes.locate(tube, [record.id], "tasks")
        return super().ahead(shard, replace(record, id=own))

    def _check_tube(self, tube: Tube, repair: bool) -> list[Finding]:
        found: list[Finding] = []
        if tube.shards > 1 and not all(self._tubes.live(self._tubes.shards(tube))):
            what = "an interrupted move has left a part of it frozen"
            found.append(Finding(tube.name, None, what, "repair unfreezes it, and so does resume"))
            if not repair:
                return found
            self.write_tube(tube, paused=self._is_paused(tube))
        return found + super()._check_tube(tube, repair)


def open_redis(url: str, clock: Callable[[], int] | None) -> ShardedStore:
    """Open the store that a redis URL names."""
    return ShardedStore(locate(url), clock)
