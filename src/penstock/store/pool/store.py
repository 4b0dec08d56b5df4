"""The store of a pool: the scripts of the Redis store on an index without data, and a vault that has everything.

A call is a step in Redis and then a commit in the vault, and returns after both; a take of leased tasks reads from the
vault and writes nothing. What a crash leaves between the two is marked in Redis, and the next caller writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial, wraps
from typing import Any, TypeVar, cast

from penstock.core.chain import is_marked
from penstock.core.group import Group
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.refusals import name_in_use
from penstock.core.results import (
    ADVANCE_STEP,
    Advanced,
    Blocked,
    Description,
    Effects,
    Finding,
    Joined,
    Lease,
    Presence,
    Settled,
    Stored,
    Taken,
)
from penstock.core.select import Listing, Sweep
from penstock.core.task import Entry, Record
from penstock.core.transfer import (
    GroupTotals,
    ImportBatch,
    TubeCounters,
    erased_options,
    freeze_refused,
    frozen_options,
    is_frozen,
    moved,
)
from penstock.errors import (
    NoSuchTube,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    StoreError,
    StoreUnavailable,
    UnsupportedOption,
)
from penstock.store.pool.data import Data
from penstock.store.pool.index import Differences, Index, Progress, differences
from penstock.store.pool.mirror import PAGE, Mirror, closed
from penstock.store.pool.runner import Dirty, PoolRunner
from penstock.store.pool.server import Interrupted, WatchedServer
from penstock.store.pool.tubes import PoolOutbox, PoolTubes, Whole, declaration
from penstock.store.pool.vault import Database, Session, Vault
from penstock.store.redis import durability
from penstock.store.redis.connection import Reply
from penstock.store.redis.location import Location, locate
from penstock.store.redis.store import SCHEMA, RedisStore, Wanted

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# Whether the session lives, how long to wait, and id, record, …
Took = tuple[int, int, list[Reply]]
_NO_DATA = "its data is not in the database of the pool"


def _whole(call: F) -> F:
    """A call of the Redis store that only reads, repeated if the tube's index was not whole all the while."""

    @wraps(call)
    def repeated(store: PoolStore, tube: Tube, *arguments: Any, **named: Any) -> Any:
        return store.look(tube, partial(call, store, tube, *arguments, **named))

    return cast(F, repeated)


class PoolStore(RedisStore):
    """Keeps the promises of `engine.store.Store` on one Redis server and a database."""

    _runner: PoolRunner
    _servers: WatchedServer
    _tubes: PoolTubes

    def __init__(
        self, where: Location, vault: Vault, clock: Callable[[], int] | None = None, progress: Progress | None = None
    ) -> None:
        """`progress` is called while an index is built at open."""
        self._vault = vault
        self._progress = progress
        self._data = Data(vault)
        super().__init__(where, clock)

    # its own parts

    def _connect(self, where: Location) -> WatchedServer:
        return WatchedServer(where)

    def _make_runner(self, modern: bool) -> PoolRunner:
        return PoolRunner(self._servers, self._keys, self._clock, modern=modern)

    def _make_shards(self) -> Whole:
        return Whole()

    def _make_tubes(self) -> PoolTubes:
        tubes = PoolTubes(self._runner, self._shards, self._vault)
        self._runner.sealed_as = tubes.sealed_as
        return tubes

    def _make_outbox(self) -> PoolOutbox:
        return PoolOutbox(self._runner, self._tubes, self._mirror)

    def _warnings(self, settings: durability.Settings) -> list[str]:
        """What Redis forgets is built again, but not while it evicts keys by itself."""
        return durability.warnings({**settings, "aof_enabled": "1"})

    def _open(self) -> str:
        self._mirror = Mirror(self._runner, self._vault)
        self._index = Index(self._runner, self._vault, SCHEMA)
        self._index.ensure(self._progress)
        self._runner.restore = self._index.restore
        self._servers.recover = self._index.ensure
        return f"pool:{self._vault.name}"

    def close(self) -> None:
        super().close()
        self._vault.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._mirror.reset()
        self._index.reset()
        self._data.reset()

    def rebuild(self, progress: Progress | None = None) -> None:
        """Build the index again from the vault, once the vault has all that is marked."""
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

    # what every call is made of

    def _must_fit(self, *values: bytes | None) -> None:
        """PayloadTooLarge for what the database cannot store; checked before anything is done."""
        for value in values:
            if value is not None and len(value) > self._vault.most_bytes:
                raise PayloadTooLarge(
                    f"data of {len(value)} bytes is over the {self._vault.most_bytes} that {self._vault.label} stores: "
                    "store it elsewhere and put a reference, or raise max_allowed_packet of a MySQL"
                )

    def _step(self, call: Callable[[], T], tube: Tube | None = None, *, data: bool = True) -> T:
        """A call that changes something, over when the vault has it. `data`: its records and events need their data."""
        with self._runner.gathering() as dirty:
            answer = call()
            records = answer.records if isinstance(answer, (Stored, Settled)) else []
            effects = answer if isinstance(answer, Effects) else getattr(answer, "effects", Effects())
            no = 0 if tube is None else tube.no
            with suppress(StoreError):  # what cannot be read now cannot be written either, which is reported next
                if data:
                    self._data.fill(no, cast("list[Record | None]", records), effects, held=True)
            self._mirror.write_all(dirty)
            for record in records:
                if record is not None and record.state != "t":
                    self._data.forget(no, record.id)
            return answer

    def look(self, tube: Tube, call: Callable[[], T]) -> T:
        """A call that only reads, repeated if the index was not whole all the while."""
        while True:
            epoch = self._runner.epoch
            try:
                answer = call()
            except NoSuchTube:
                if not self._index.restore(tube):
                    raise
                continue
            if self._index.is_open(tube, epoch):
                return answer
            self._restore(tube)

    def _restore(self, tube: Tube) -> None:
        if not self._index.restore(tube):
            raise self._runner.missing(tube) from None

    def _write_later(self, effects: Effects, dirty: Dirty) -> bool:
        """Write what the clock or a session's end did: no call fails for it. False if it was lost with the index."""
        with suppress(StoreError):
            self._data.fill(0, [], effects)
        return self._mirror.write_later(dirty)

    def _persist(self, tube: Tube, step: Callable[[int], object]) -> None:
        """A step in one epoch, repeated if the index was not whole all the while."""
        while True:
            try:
                step(self._runner.epoch)
                return
            except Interrupted:
                self._restore(tube)

    # tubes

    paused = _whole(RedisStore.paused)

    def _pause(self, tube: Tube, paused: bool) -> int:
        turn = self.look(tube, partial(super()._pause, tube, paused))
        self._mirror.write(tube, str(self._runner.epoch), whole=True)
        return turn

    def _repair_queues(self, tube: Tube) -> None:
        self.look(tube, lambda: None)  # a new tube has no index yet
        self._step(partial(super()._repair_queues, tube))
        self._mirror.write(tube, str(self._runner.epoch), whole=True)

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

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        self._must_fit(*(entry.payload for entry in entries))
        if any(is_marked(entry.reply_to) for entry in entries):
            raise UnsupportedOption("a pool has no chains: put them on the database behind it, or on Redis alone")
        return self._step(partial(super().put, tube, entries, now=now), tube)

    def plain_put(self, tube: Tube, entry: Entry) -> None:
        """There is no shorter way than `put`."""

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        """As the contract says; with `brief`, the same scripts run, but unneeded data is not read."""
        self._must_fit(*(move.result for move in moves))
        return self._step(partial(super().settle, tube, moves, now=now), tube, data=not brief)

    def sweep(self, tube: Tube, sweep: Sweep, *, now: int | None = None) -> Settled:
        if sweep.verb == "delete":
            self.look(tube, lambda: None)  # a new tube has no index yet
        return self._step(partial(super().sweep, tube, sweep, now=now), tube)

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        self._mirror.tidy(tube)
        with self._runner.gathering() as dirty:
            advanced = super().advance(tube, limit=limit, now=now)
            return advanced if self._write_later(advanced.effects, dirty) else Advanced(True, 0, Effects())

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str], *, now: int | None = None) -> list[Record | None]:
        return self._data.complete(tube.no, self.look(tube, partial(super().get, tube, keys, now=now)))

    def find(self, tube: Tube, listing: Listing, *, now: int | None = None) -> list[Record]:
        found = self.look(tube, partial(super().find, tube, listing, now=now))
        return cast("list[Record]", self._data.complete(tube.no, found))

    count = _whole(RedisStore.count)
    ahead = _whole(RedisStore.ahead)
    lane = _whole(RedisStore.lane)

    # hand-outs: a lease is only in Redis; the vault must know of what is handed out without one

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        """As the contract says; the data of what is handed out is one query."""
        call = partial(super().take, tubes, count, handle, max_pri=max_pri, blocked=blocked, now=now)
        for tube in tubes:
            self._mirror.tidy(tube)
        with self._runner.gathering() as dirty:
            taken = call()
            self._fill(taken, now)
            self._mirror.write_later(dirty)
            return taken

    def _fill(self, taken: Taken, now: int | None) -> None:
        """Add the data of what was taken. If the vault cannot be read, everything is released and the call fails."""
        tube, records = taken.tube, cast("list[Record | None]", taken.records)
        leased = tube is not None and tube.kind.leased
        try:
            self._data.fill(tube.no if tube else 0, records, taken.effects, held=not leased)
        except StoreError as error:
            if tube is not None and leased:
                moves = [_guarded("release", record, unstarted=True) for record in taken.records]
                super().settle(tube, moves, now=now)
            raise StoreUnavailable(f"{self._vault.label} gave no data of what is taken ({error}): try again") from error
        if tube is not None and leased:
            self._bury_empty(tube, taken, now)
        if tube is not None:
            self._remember(tube, taken.records)

    def _bury_empty(self, tube: Tube, taken: Taken, now: int | None) -> None:
        """Nobody can work on a task without data: it was settled meanwhile, or the database was changed by others."""
        empty = [record for record in taken.records if not record.payload]
        if empty:
            super().settle(tube, [_guarded("bury", record, reason=_NO_DATA) for record in empty], now=now)
            taken.records[:] = [record for record in taken.records if record.payload]
            taken.effects.events[:] = [event for event in taken.effects.events if event.record not in empty]

    def _remember(self, tube: Tube, records: Sequence[Record | None]) -> None:
        """Hold the data of what is leased; that of others may change without us."""
        for record in records:
            if record is not None and tube.kind.leased:
                self._data.keep(tube.no, record.id, record.payload)
            elif record is not None:
                self._data.forget(tube.no, record.id)

    def _take_from(self, tube: Tube, wanted: Wanted, now: int | None, effects: Effects) -> Took:
        call = partial(super()._take_from, tube, wanted, now, effects)
        return call() if tube.kind.leased else self._hand_out(tube, call, lambda took: cast("list[int]", took[2][::2]))

    def _hand_out(self, tube: Tube, call: Callable[[], T], ids: Callable[[T], Sequence[int]]) -> T:
        """Hand out without a lease. Anyone may ack it at once: its data is read while nobody else can write."""
        done: list[T] = []

        def before(session: Session) -> None:
            if not done:  # else the transaction is begun again
                with self._servers.strictly():
                    done.append(call())
            for id, data in self._vault.data(tube.no, ids(done[0]), session).items():
                self._data.keep(tube.no, id, data)

        while True:
            try:
                self._mirror.write(tube, str(self._runner.epoch), before=before)
                self._runner.written(tube)
                return done[0]
            except StoreError as error:
                if done:
                    raise OutcomeUnknown(
                        f"a hand-out of tube {tube.name} could not be written to {self._vault.label} ({error}): it may "
                        "or may not have happened; look first"
                    ) from error
                if not isinstance(error, Interrupted):
                    raise
                self._restore(tube)

    def _recover(self, tube: Tube, sweep: Sweep, now: int | None) -> Settled:
        call = partial(super()._recover, tube, sweep, now)
        recovered = self._step(lambda: self._hand_out(tube, call, _ids), tube)
        self._remember(tube, recovered.records)
        return recovered

    # addresses, outcomes and groups

    outcome = _whole(RedisStore.outcome)
    groups = _whole(RedisStore.groups)

    def open_group(self, tube: Tube, name: str, *, on_failure: str | None = None, now: int | None = None) -> Group:
        return self._step(partial(super().open_group, tube, name, on_failure=on_failure, now=now))

    def change_group(
        self, tube: Tube, no: int, *, to: str | None = None, end: bytes | None = None, cancel: bytes | None = None,
        now: int | None = None,
    ) -> Advanced | None:  # fmt: skip
        self._must_fit(end, cancel)
        return self._step(partial(super().change_group, tube, no, to=to, end=end, cancel=cancel, now=now), tube)

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int, *, now: int | None = None) -> Joined:
        """As the contract says; the session's number is one of the epoch."""
        while True:
            joined = super().join(presence, session, ttr, now=now)
            if self._index.is_whole():
                return joined
            self._index.ensure()

    def held(self, session: int, leases: Sequence[Lease], *, now: int | None = None) -> list[bool]:
        """As the contract says; a lease of another epoch is dead."""
        self._runner.begin()
        return super().held(session, leases, now=now)

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        if not self._index.is_whole():
            self._index.ensure()
        with self._runner.gathering() as dirty:
            alive = super().beat(handles, now=now)
            self._mirror.write_later(dirty)
            return alive

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        with self._runner.gathering() as dirty:
            effects = super().leave(handles, locus=locus, now=now)
            self._write_later(effects, dirty)
            return effects

    # integrity

    def check(self, repair: bool, *, now: int | None = None) -> list[Finding]:
        tubes = self._tubes.all()
        for tube in tubes:
            self.look(tube, lambda: None)  # a new tube has no index yet
        found = self._step(partial(super().check, repair, now=now))
        for tube in tubes:
            self._mirror.write(tube, str(self._runner.epoch), whole=repair)
        apart = [differences(self._runner, self._vault, tube) for tube in tubes]
        if repair:
            self._bring_together(apart, now)
        return found + [finding for each in apart for finding in each.findings()]

    def _bring_together(self, apart: Sequence[Differences], now: int | None) -> None:
        """The vault is right: what it does not have is deleted, what only it has is loaded."""
        for each in apart:
            self.settle(each.tube, [Move("delete", id) for id in each.strange], now=now)
        if any(each.missing for each in apart):
            self.rebuild()

    # transfer: each call is over when the vault has it, which alone knows the names of tubes

    counters = _whole(RedisStore.counters)
    read_groups = _whole(RedisStore.read_groups)
    read_outcomes = _whole(RedisStore.read_outcomes)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        found = self.look(tube, partial(super().read_tasks, tube, after, limit))
        return cast("list[Record]", self._data.complete(tube.no, found))

    def freeze_tube(self, tube: Tube, to: str) -> None:
        declared = declaration(moved(tube.name), tube.kind, frozen_options(tube.given, to))

        def freeze(epoch: int) -> None:
            done: list[bool] = []

            def before(session: Session) -> None:
                if not done:  # else the transaction is begun again
                    self._close_index(tube, epoch)
                    done.append(True)
                self._vault.rename(session, tube.no, moved(tube.name), declared)

            self._mirror.write(tube, closed(epoch), whole=True, before=before)

        self._persist(tube, freeze)

    def _close_index(self, tube: Tube, epoch: int) -> None:
        with self._servers.strictly():
            refused = self._runner.in_epoch(str(epoch), "close_index", tube, closed(epoch))[1]
        if refused:
            raise freeze_refused(tube, refused == 1)

    def erase_tube(self, tube: Tube) -> None:
        self._runner.on_tag("erase_tube", tube.no, idempotent=True)
        self._vault.erase_tube(tube.no, PAGE)
        if is_frozen(tube):
            declared = declaration(tube.name, tube.kind, erased_options(tube))
            self._vault.write(tube.no, lambda session, _: self._rename(session, tube, tube.name, declared))

    def forget_tube(self, tube: Tube) -> None:
        meta = self._keys.name(tube.no, "meta")
        self._vault.drop_tube(tube.no, lambda: self._servers.command(meta, b"DEL", meta))

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        self._must_fit(*(record.payload for record in batch.records))
        self._must_fit(*(kept.ending.result for kept in batch.outcomes))
        self._step(partial(super().import_batch, tube, batch), tube)

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        declared = declaration(name, tube.kind, tube.given)

        def activate(epoch: int) -> None:
            self._activate(tube, name, counters, totals)
            self._mirror.write(
                tube, str(epoch), whole=True, before=lambda session: self._rename(session, tube, name, declared)
            )

        self._persist(tube, activate)
        self._tubes.note_altered()

    def _rename(self, session: Session, tube: Tube, name: str, declared: bytes) -> tuple[()]:
        if not self._vault.rename(session, tube.no, name, declared):
            raise name_in_use(name)
        return ()


def _ids(settled: Settled) -> list[int]:
    return [record.id for record in settled.records if record is not None]


def _guarded(verb: str, record: Record, *, unstarted: bool = False, reason: str | None = None) -> Move:
    return Move(verb, record.id, record.owner, record.lease, reason=reason, unstarted=unstarted)


def open_pool(
    url: str, database: Database, clock: Callable[[], int] | None = None, progress: Progress | None = None
) -> PoolStore:
    """The pool of a Redis URL and a database, which is closed if that fails."""
    try:
        where = locate(url)
        if where.scheme == "redis+cluster":
            raise UnsupportedOption("pool= needs one Redis server in front, not a cluster: give a redis:// URL")
        return PoolStore(where, Vault(database), clock, progress)
    except BaseException:
        database.close()
        raise


def rebuild_pool(url: str, database: Database, progress: Progress) -> None:
    """Build the index again, once: by opening the pool if the index is lost, else by asking for it."""
    built: list[int] = []

    def report(done: int, total: int) -> None:
        built.append(done)
        progress(done, total)

    with closing(open_pool(url, database, progress=report)) as store:
        if not built:
            store.rebuild(progress)
