"""The store of a pool: the scripts of the Redis store on an index without data, and a vault that has everything.

A call is a step in Redis and then a commit in the vault, and returns after both; a take of leased tasks reads from
the vault and writes nothing. What a crash leaves between the two is marked in Redis, and written by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from penstock.core.ending import Sought
from penstock.core.group import Group
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import (
    ADVANCE_STEP,
    Advanced,
    Counts,
    Description,
    Effects,
    Finding,
    Joined,
    Lane,
    Presence,
    Settled,
    Stored,
)
from penstock.core.select import Listing, Sweep
from penstock.core.task import Entry, Record
from penstock.errors import PenstockError
from penstock.store.pool.checks import Differences, differences
from penstock.store.pool.index import Progress
from penstock.store.pool.moving import PoolMoving
from penstock.store.redis import durability


class PoolStore(PoolMoving):
    """Keeps the contract of `store.contract` on one Redis server and a database."""

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index anew from the vault, once the vault has all that is marked."""
        for tube in self._tubes.stored_tubes():
            with suppress(PenstockError):  # of an index that is lost anyway
                self._mirror.write(tube, str(self._runner.epoch))
        self._index.rebuild(progress)

    def describe(self) -> Description:
        found = super().describe()
        [settings] = durability.read_settings(self._servers).values()
        return Description(
            f"pool behind {found.store}",
            found.version,
            f"{found.where}, database {self._vault.label}",
            f"{self._vault.promise()}; all of Redis may be lost",
            found.schema,
            self._warnings(settings),
        )

    # tubes

    def drop_tube(self, tube: Tube) -> Effects:
        effects = Effects()
        with self._runner.gathering() as dirty:
            self._catch_up(None, tube, effects)
            self._data.fill(tube.no, [], effects)
            replies = self._vault.drop_tube(tube.no, lambda: self._drop(tube))
            dirty.pop(tube.no, None)
            if replies:
                self._outbox.drain(tube.no, effects, None)
            self._mirror.write_all(dirty)
        return effects

    def _drop(self, tube: Tube, *, anyhow: bool = False) -> bool:
        with self._servers.strictly():
            return super()._drop(tube, anyhow=anyhow)

    def pause_tube(self, tube: Tube, paused: bool) -> None:
        self._look(tube, partial(super().pause_tube, tube, paused))
        self._mirror.write(tube, str(self._runner.epoch), whole=True)

    def paused(self, tube: Tube) -> bool:
        return self._look(tube, partial(super().paused, tube))

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        self._must_fit(*(entry.payload for entry in entries))
        return self._step(partial(super().put, tube, entries, now=now), tube)

    def plain_put(self, tube: Tube, entry: Entry) -> None:
        """There is no shorter way than `put`."""

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        """As the contract says; being brief spares no script, but the data that nobody wants."""
        self._must_fit(*(move.result for move in moves))
        return self._step(partial(super().settle, tube, moves, now=now), tube, told=not brief)

    def sweep(self, tube: Tube, sweep: Sweep, *, now: int | None = None) -> Settled:
        if sweep.verb == "delete":
            self._look(tube, lambda: None)  # a new one has no index yet
        return self._step(partial(super().sweep, tube, sweep, now=now), tube)

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        self._mirror.tidy(tube)
        with self._runner.gathering() as dirty:
            advanced = super().advance(tube, limit=limit, now=now)
            return advanced if self._tell(advanced.effects, dirty) else Advanced(True, 0, Effects())

    # looking

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str], *, now: int | None = None) -> list[Record | None]:
        return self._data.complete(tube.no, self._look(tube, partial(super().get, tube, keys, now=now)))

    def find(self, tube: Tube, listing: Listing, *, now: int | None = None) -> list[Record]:
        found = self._look(tube, partial(super().find, tube, listing, now=now))
        return cast("list[Record]", self._data.complete(tube.no, found))

    def count(self, tube: Tube) -> Counts:
        return self._look(tube, partial(super().count, tube))

    def ahead(self, tube: Tube, record: Record) -> int:
        return self._look(tube, partial(super().ahead, tube, record))

    def lane(self, tube: Tube, utube: str) -> Lane:
        return self._look(tube, partial(super().lane, tube, utube))

    def check(self, repair: bool, *, now: int | None = None) -> list[Finding]:
        tubes = self._tubes.all()
        for tube in tubes:
            self._look(tube, lambda: None)  # a new one has no index yet
        found = self._step(partial(super().check, repair, now=now))
        for tube in tubes:
            self._mirror.write(tube, str(self._runner.epoch), whole=repair)
        apart = [differences(self._runner, self._vault, tube) for tube in tubes]
        if repair:
            self._bring_together(apart, now)
        return found + [finding for each in apart for finding in each.findings()]

    def _bring_together(self, apart: Sequence[Differences], now: int | None) -> None:
        """The vault is believed: what it does not have is deleted, what only it has is loaded."""
        for each in apart:
            self.settle(each.tube, [Move("delete", id) for id in each.strange], now=now)
        if any(each.missing for each in apart):
            self.rebuild()

    # what tasks are tied to

    def outcome(self, tube: Tube, key: int | str, *, now: int | None = None) -> Sought:
        return self._look(tube, partial(super().outcome, tube, key, now=now))

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        return self._step(partial(super().open_group, tube, name, now=now))

    def groups(
        self, tube: Tube, *, no: int | None = None, after: str = "", limit: int = 100, now: int | None = None
    ) -> list[Group]:
        return self._look(tube, partial(super().groups, tube, no=no, after=after, limit=limit, now=now))

    def change_group(
        self, tube: Tube, no: int, *, to: str | None = None, end: bytes | None = None, cancel: bytes | None = None,
        now: int | None = None,
    ) -> Advanced | None:  # fmt: skip
        self._must_fit(end, cancel)
        return self._step(partial(super().change_group, tube, no, to=to, end=end, cancel=cancel, now=now), tube)

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int, *, now: int | None = None) -> Joined:
        """As the contract says; its number is of the epoch."""
        while True:
            joined = super().join(presence, session, ttr, now=now)
            if self._index.is_whole():
                return joined
            self._index.ensure()

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        if not self._index.is_whole():
            self._index.ensure()
        return super().beat(handles, now=now)

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        with self._runner.gathering() as dirty:
            effects = super().leave(handles, locus=locus, now=now)
            self._tell(effects, dirty)
            return effects
