"""The store of a pool: the scripts of the Redis store on an index without data, and a vault that has everything.

A call is a step in Redis followed by a commit in the vault, and returns after both; a take of leased tasks only reads
from the vault. After a crash between the two, the changes are still marked in Redis, and the next caller writes them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from math import inf
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from penstock.core.chain import is_marked
from penstock.core.entry import record_maker, stands_alone
from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, changed_options, encode_given, make_tube
from penstock.core.refusals import name_in_use, tube_exists
from penstock.core.results import (
    ADVANCE_STEP,
    Advanced,
    Blocked,
    Description,
    Effects,
    Event,
    Finding,
    Joined,
    Presence,
    Settled,
    Stored,
    Taken,
)
from penstock.core.select import Listing, Sweep
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, StoredOutcome, TubeCounters, importing, is_frozen
from penstock.engine.port import Loaded, Select
from penstock.errors import (
    NoSuchTube,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    StoreError,
    StoreUnavailable,
    UnsupportedOption,
)
from penstock.store.pool.epoch_runner import Change, EpochRunner, Interrupted, WatchedServer
from penstock.store.pool.index import Index, Mirror, Progress, differences
from penstock.store.pool.vault import Database, Shelf, Vault, vault_version
from penstock.store.redis import durability, puts
from penstock.store.redis.location import Location, locate
from penstock.store.redis.outbox import Outbox, OutboxEntry
from penstock.store.redis.redis_connection import packed
from penstock.store.redis.redis_step import RedisStep
from penstock.store.redis.redis_store import SCHEMA, RedisStore
from penstock.store.redis.script_runner import ScriptRunner
from penstock.store.redis.tubes import Declared, Tubes, encode_declared, make_declared

T = TypeVar("T")
# The largest data of a put that is stored with others.
_SHARED_BYTES = 2**16
_NO_DATA = "its data is not in the database of the pool"
# If the index and the vault differ, the vault is right.
_STRANGE = "is in Redis, but not in the database of the pool", "repair removes it"
_MISSING = "is in the database of the pool, but not in Redis", "repair rebuilds the index"
# An entry, and the data that replaces that of the entry.
Put = tuple[Entry, bytes]
R = TypeVar("R", Record, Record | None)
P = TypeVar("P", Record, Group, StoredOutcome)


class PoolTubes(Tubes):
    """The tubes of one pool. A new one has no index yet; the first call on it creates one."""

    def __init__(self, runner: ScriptRunner, vault: Vault) -> None:
        super().__init__(runner)
        self._vault = vault

    def shards(self, tube: Tube) -> Sequence[Tube]:
        """See `Tubes.shards`. There is one server, so no tube is split."""
        return (tube,)

    def check(self, repair: bool) -> list[Finding]:
        """Find nothing: the database knows every tube, and an index that lacks one of its keys is rebuilt."""
        return []

    def save(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        self.find(name)  # raises NoSuchTube while the tube is being moved
        shelf, made = self._vault.add_tube(name, declaration(name, kind, given))
        if not made and not exist_ok:
            raise tube_exists(name)
        if made:
            self.note_altered()
        return make_declared(shelf.no, shelf.declared)

    def alter(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        given: dict[str, object] = {}

        def declare(shelf: Shelf) -> tuple[str, bytes]:
            nonlocal given
            given = changed_options(make_declared(shelf.no, shelf.declared).given, changes)
            return tube.name, declaration(tube.name, tube.kind, given)

        if not (self._lives(tube) and self._vault.rename(tube.no, declare)):
            raise self._runner.missing(tube)
        self.note_altered()
        return make_tube(tube.no, tube.name, tube.kind, given)

    def _lookup(self, name: str) -> Tube | None:
        shelf = self._vault.tube(name) or self._vault.tube(importing(name))
        return None if shelf is None else make_declared(shelf.no, shelf.declared)

    def _declared(self) -> list[Tube]:
        return [make_declared(shelf.no, shelf.declared) for shelf in self._vault.tubes()]

    def forget(self, tube: Tube) -> None:
        """Do nothing: a dropped tube lost its name with its row."""


class PoolOutbox(Outbox):
    """The outboxes of all tubes of one pool. An entry leaves its outbox once the vault has the reply."""

    _runner: EpochRunner

    def __init__(self, runner: EpochRunner, tubes: Tubes, mirror: Mirror) -> None:
        super().__init__(runner, tubes)
        self._mirror = mirror

    def _receive(self, source: int, name: str, batch: list[OutboxEntry], effects: Effects) -> Tube:
        epoch = str(self._runner.servers.epoch)
        tube = super()._receive(source, name, batch, effects)
        self._mirror.write_all([Change(tube, epoch, self._runner.servers.marked[0] or inf)])
        if tube.no != source:
            self._runner.written(tube)
        return tube


def declaration(name: str, kind: Kind, given: dict[str, object]) -> bytes:
    """Encode the declaration of a tube for its row."""
    return encode_declared(Declared(name, kind, encode_given(given).decode()))


class PoolStep(RedisStep):
    """Reads and writes of one call on the index. Tasks that a link of a chain follows are loaded with their data."""

    __slots__ = ("_vault",)

    def __init__(self, vault: Vault, runner: EpochRunner, outbox: Outbox, tube: Tube, write: bool) -> None:
        super().__init__(runner, outbox, tube, write)
        self._vault = vault

    def load(self, tube: Tube, select: Select) -> Loaded:
        """See `Step.load`."""
        loaded = super().load(tube, select)
        linked = [each.id for each in loaded.records if is_marked(each.reply_to) and not each.payload]
        if not linked:
            return loaded
        data = self._vault.data(tube.no, linked)
        records = [replace(each, payload=data.get(each.id, each.payload)) for each in loaded.records]
        return Loaded(records, loaded.groups)


class PutLine:
    """Puts of several threads into one tube. Those that come while others are being stored are stored together, by the
    first of their threads."""

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._puts, self._stored = list[Put](), Future[list[Record]]()

    def put(self, put: Put, store: Callable[[list[Put]], list[Record]]) -> Record:
        """Store a put, perhaps together with others. Returns its record."""
        puts, stored, place = self._puts, self._stored, -1
        try:
            with self._lock:
                puts, stored, place = self._puts, self._stored, len(self._puts)
                puts.append(put)
            if not place:
                with self._turn:  # meanwhile others join
                    self._close(puts)
                    stored.set_result(store(puts))
        except BaseException as error:
            if not (place or stored.done()):
                self._close(puts)
                unknown = OutcomeUnknown("the thread that stored this task was interrupted: check before retrying")
                stored.set_exception(error if isinstance(error, PenstockError) else unknown)
            raise
        return stored.result()[place]

    def _close(self, puts: list[Put]) -> None:
        """Let no more puts join these."""
        with self._lock:
            if self._puts is puts:
                self._puts, self._stored = [], Future()


class PoolStore(RedisStore):
    """Implements `engine.store.Store` on one Redis server and a database."""

    _runner: EpochRunner
    _servers: WatchedServer
    _tubes: PoolTubes
    _connect = WatchedServer
    _runner_type = EpochRunner
    # Of evictions, but not of missing persistence: what Redis loses is rebuilt from the vault.
    _warnings = staticmethod(lambda settings: durability.warnings({**settings, "aof_enabled": "1"}))

    def __init__(
        self, where: Location, vault: Vault, clock: Callable[[], int] | None = None, progress: Progress | None = None
    ) -> None:
        """`progress` is called if opening the store builds the index."""
        self._vault = vault
        self._progress = progress
        self._lines: dict[int, PutLine] = {}
        super().__init__(where, clock)

    # parts that differ from those of RedisStore

    def step(self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1) -> PoolStep:
        """See `RedisStep`."""
        return PoolStep(self._vault, self._runner, self._outbox, tubes[0], write)

    def _open(self) -> str:
        self._mirror, self._tubes = Mirror(self._runner, self._vault), PoolTubes(self._runner, self._vault)
        self._outbox = PoolOutbox(self._runner, self._tubes, self._mirror)
        self._index = Index(self._runner, self._vault, SCHEMA)
        self._index.ensure(self._progress)
        self._servers.recover, self._servers.restore = self._index.ensure, self._index.restore
        self._mirror.replace = self._index.replace
        return f"pool:{self._vault.name}"

    def close(self) -> None:
        super().close()
        self._vault.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._runner.reset()
        self._index.reset()
        self._lines = {}

    def rebuild(self, progress: Progress | None = None) -> None:
        """Write everything that is marked to the vault, then rebuild the index from the vault."""
        for tube in (make_declared(shelf.no, shelf.declared) for shelf in self._vault.tubes()):
            with suppress(PenstockError):  # the index may be lost
                self._mirror.write(tube, str(self._servers.epoch))
        self._index.replace(self._vault.epoch(), progress)

    def describe(self) -> Description:
        found = super().describe()
        [settings] = durability.read_settings(self._servers).values()
        where, promise = f"{found.where}, database {self._vault.label}", self._vault.promise()
        return replace(
            found, store=f"pool behind {found.store}", where=where, durability=f"{promise}; all of Redis may be lost",
            advice=self._warnings(settings),
        )  # fmt: skip

    # helpers of all calls

    def _must_fit(self, *values: bytes | None) -> None:
        """Raise PayloadTooLarge for a value that the database cannot store, before anything is changed."""
        for value in values:
            if value is not None and len(value) > self._vault.most_bytes:
                raise PayloadTooLarge(
                    f"data of {len(value)} bytes is over the {self._vault.most_bytes} that {self._vault.label} stores: "
                    "store it elsewhere and put a reference, or raise max_allowed_packet of a MySQL"
                )

    def _step(
        self, call: Callable[[], T], tube: Tube | None = None, *, data: bool = True,
        known: Mapping[int, bytes] | None = None, lost: T | None = None, waits: bool = False,
    ) -> T:  # fmt: skip
        """Make a call that changes something, and return once the vault has the changes. `data`: the records and events
        of its answer need their data, except that of `known`, by id. `waits`: see `gathering`.

        With `lost`, the call applies deadlines or ends sessions, and does not fail if the vault cannot be written now.
        If the changes were lost with the index, as if never made, it returns `lost`.
        """
        with self._runner.gathering(waits=waits) as changes:
            answer = call()
            with suppress(StoreError):  # then the write below fails too, and reports it
                if data:
                    self._fill(answer, tube, known)
            if lost is None:
                self._mirror.write_all(changes.values())
            elif not self._mirror.write_later(changes.values()):
                return lost
            return answer

    def _fill(self, answer: object, tube: Tube | None = None, known: Mapping[int, bytes] | None = None) -> None:
        """Add missing data to the records of an answer, which belong to `tube`, and to the records of its events."""
        effects = answer if isinstance(answer, Effects) else getattr(answer, "effects", Effects())
        records: list[Record | None] = getattr(answer, "records", [])
        no = 0 if tube is None else tube.no
        found = {(no, id): data for id, data in (known or {}).items()}
        wanted = {(no, record.id) for record in records if record is not None and not record.payload}
        wanted |= {(event.tube, event.record.id) for event in effects.events if not event.record.payload}
        missing: defaultdict[int, list[int]] = defaultdict(list)
        for place, id in wanted - found.keys():
            missing[place].append(id)
        for place, ids in missing.items():
            found.update(((place, id), data) for id, data in self._vault.data(place, ids).items())

        def completed(no: int, record: Record) -> Record:
            data = None if record.payload else found.get((no, record.id))
            return record if data is None else replace(record, payload=data)

        records[:] = [record and completed(no, record) for record in records]
        effects.events[:] = [Event(each.tube, each.name, completed(each.tube, each.record)) for each in effects.events]

    def _filled(self, tube: Tube, records: list[R]) -> list[R]:
        self._fill(Settled(records, Effects()), tube)  # type: ignore[arg-type]
        return records

    def _write_whole(self, tube: Tube, step: Callable[[], T]) -> T:
        """Run a step that changes what a tube stores besides its tasks, and write that to the vault; repeat both if the
        index was lost in between."""
        while True:
            epoch = str(self._servers.epoch)
            try:
                done = step()
                self._mirror.write(tube, epoch, whole=True)
                return done
            except (Interrupted, NoSuchTube):
                there = self._index.restore(tube.no)
                if not there or (self._runner.frozen(tube) is not None and not is_frozen(tube)):
                    raise self._runner.missing(tube) from None

    # tubes

    def load_tubes(self, names: Sequence[str] | None = None, *, frozen: bool = False) -> list[Tube]:
        """See `Store.load_tubes`. Also writes to the vault that a tube is frozen, before its tasks are copied."""
        tubes = super().load_tubes(names, frozen=frozen)
        for tube in tubes if names else ():
            if is_frozen(tube):
                self._write_whole(tube, lambda: None)
        return tubes

    def _pause(self, tube: Tube, paused: bool) -> int:
        return self._write_whole(tube, partial(super()._pause, tube, paused))

    def _repair_queues(self, tube: Tube) -> None:
        self._write_whole(tube, partial(super()._repair_queues, tube))

    def drop_tube(self, tube: Tube) -> Effects:
        effects = Effects()
        with self._runner.gathering() as changes:
            self._apply_all_due(None, tube, effects)
            self._fill(effects)
            replies = self._vault.drop_tube(tube.no, lambda: self._drop(tube))
            changes.pop(tube.no, None)
            if replies:
                self._outbox.drain(tube.no, effects)
            self._mirror.write_all(changes.values())
        return effects

    def _drop(self, tube: Tube, *, anyhow: bool = False) -> bool:
        with self._servers.strictly():
            return super()._drop(tube, anyhow=anyhow)

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry]) -> Stored:
        self._must_fit(*(entry.payload for entry in entries))
        return self._step(partial(super().put, tube, entries), tube, waits=True)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        if not stands_alone(tube, entry):
            return None
        runner, mirror = self._runner, self._mirror
        request, make = puts.plain_request(runner, tube, entry, more=2), record_maker(entry)

        def put_alone(payload: bytes) -> Record:
            (created, id), change = runner.change_tube(
                tube, lambda client, epoch: request(payload, packed(client, epoch)), runner.new_client()
            )
            mirror.write_all((change,))
            return make(id, created, payload)

        def put_all(found: list[Put]) -> list[Record]:
            if len(found) == 1:
                return [put_alone(found[0][1])]
            return self.put(tube, [replace(entry, payload=payload) for entry, payload in found]).records

        def put(payload: bytes) -> Record:
            self._must_fit(payload)
            if len(payload) > _SHARED_BYTES:
                return put_alone(payload)
            line = self._lines.get(tube.no) or self._lines.setdefault(tube.no, PutLine())
            return line.put((entry, payload), put_all)

        return put

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False) -> Settled:
        self._must_fit(*(move.result for move in moves))
        known = {move.id: move.seen.payload for move in moves if move.seen is not None}
        settle = partial(super().settle, tube, moves, brief=brief)
        return self._step(settle, tube, data=not brief, known=known, waits=True)

    def sweep(self, tube: Tube, sweep: Sweep) -> Settled:
        swept = self._step(partial(super().sweep, tube, sweep), tube)
        if sweep.verb == "recover":  # leave out what was removed before its data was read
            swept.records[:] = [record for record in swept.records if record is not None and record.payload]
        return swept

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP) -> Advanced:
        self._mirror.tidy(tube)
        return self._step(partial(super().advance, tube, limit=limit), lost=Advanced(True, 0, Effects()))

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str]) -> list[Record | None]:
        return self._filled(tube, super().get(tube, keys))

    def find(self, tube: Tube, listing: Listing) -> list[Record]:
        return self._filled(tube, super().find(tube, listing))

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, waiter: int = 0,
    ) -> Taken:  # fmt: skip
        """See `Store.take`. One query reads the data of all tasks. Leases are stored in Redis only, but hand-outs
        without a lease are written to the vault."""
        for tube in tubes:
            self._mirror.tidy(tube)
        with self._runner.gathering() as changes:
            taken = super().take(tubes, count, handle, max_pri=max_pri, blocked=blocked)
            self._complete(taken)
            if taken.tube is not None and not taken.tube.kind.leased:
                self._mirror.write_all(changes.values())
            else:
                self._mirror.write_later(changes.values())
            return taken

    def _complete(self, taken: Taken) -> None:
        """Add the data of taken tasks. If the vault cannot be read, release leased tasks and fail the call.

        A task without data cannot be handed out. In an unleased kind, another client has removed it since the take. In
        a leased kind, it was settled since, or another program changed the database: it is buried.
        """
        tube, records = taken.tube, taken.records
        leased = tube is not None and tube.kind.leased
        try:
            self._fill(taken, tube)
        except StoreError as error:
            if tube is not None and leased:
                back = [Move("release", each.id, each.owner, each.lease, unstarted=True) for each in records]
                super().settle(tube, back)
            raise StoreUnavailable(f"{self._vault.label} could not read taken tasks ({error}): try again") from error
        empty = [record for record in records if not record.payload]
        if tube is not None and leased and empty:
            aside = [Move("bury", each.id, each.owner, each.lease, reason=_NO_DATA) for each in empty]
            super().settle(tube, aside)
        records[:] = [record for record in records if record.payload]

    # groups

    def open_group(self, tube: Tube, name: str, *, on_failure: str | None = None) -> Group:
        return self._step(partial(super().open_group, tube, name, on_failure=on_failure))

    def change_group(
        self, tube: Tube, no: int, name: str, *, to: str | None = None, end: bytes | None = None,
        cancel: bytes | None = None,
    ) -> Advanced | None:  # fmt: skip
        self._must_fit(end, cancel)
        return self._step(partial(super().change_group, tube, no, name, to=to, end=end, cancel=cancel))

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int) -> Joined:
        """See `Store.join`. Repeated if the index was lost during the call: session numbers belong to an epoch."""
        while True:
            joined = super().join(presence, session, ttr)
            if self._index.is_whole():
                return joined
            self._index.ensure()

    def beat(self, handles: Sequence[str]) -> set[str]:
        if not self._index.is_whole():
            self._index.ensure()
        return self._step(partial(super().beat, handles), lost=set())

    def leave(self, handles: Sequence[str], *, locus: str | None = None) -> Effects:
        return self._step(partial(super().leave, handles, locus=locus), lost=Effects())

    # integrity

    def check(self, repair: bool) -> list[Finding]:
        found, tubes = self._step(partial(super().check, repair)), self._tubes.all()
        for tube in tubes:
            self._mirror.write(tube, str(self._servers.epoch), whole=repair)
        lacking = False
        for tube in tubes:
            strange, missing = differences(self._runner, self._vault, tube)
            found += [Finding(tube.name, id, *_STRANGE) for id in strange]
            found += [Finding(tube.name, id, *_MISSING) for id in missing]
            lacking = lacking or bool(missing)
            if repair:
                self.settle(tube, [Move("delete", id) for id in strange])
        if repair and lacking:
            self.rebuild()
        return found

    # transfer

    def read_page(self, tube: Tube, what: type[P], after: int, limit: int) -> list[P]:
        page = super().read_page(tube, what, after, limit)
        if what is Record:
            self._filled(tube, cast("list[Any]", page))
        return page

    def freeze_tube(self, tube: Tube, to: str) -> None:
        self._write_whole(tube, partial(super().freeze_tube, tube, to))

    def erase_tube(self, tube: Tube, *, forget: bool = False) -> None:
        erase = partial(super().erase_tube, tube)
        erase()  # first, so that no marked change is written after the vault was erased
        version = self._runner.command(tube.no, "meta", b"HGET", b"version")
        self._vault.erase_tube(tube.no, vault_version(self._servers.epoch, int(version or 0)))
        self._write_whole(tube, erase)
        if forget:
            self._forget(tube)

    def _forget(self, tube: Tube) -> None:
        meta = self._keys.name(tube.no, "meta")
        self._vault.drop_tube(tube.no, lambda: self._servers.send(meta, b"DEL", meta))

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        self._must_fit(*(record.payload for record in batch.records))
        self._must_fit(*(kept.ending.result for kept in batch.outcomes))
        self._step(partial(super().import_batch, tube, batch))

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        self._write_whole(tube, partial(self._activate, tube, name, counters, totals))
        if not self._vault.rename(tube.no, lambda _: (name, declaration(name, tube.kind, tube.given))):
            raise name_in_use(name)
        self._tubes.note_altered()


def open_pool(
    url: str, database: Database, clock: Callable[[], int] | None = None, progress: Progress | None = None
) -> PoolStore:
    """Open the pool of a Redis URL and a database; closes the database if that fails."""
    try:
        where = locate(url)
        if where.scheme == "redis+cluster":
            raise UnsupportedOption("pool= needs one Redis server in front, not a cluster: give a redis:// URL")
        return PoolStore(where, Vault(database), clock, progress)
    except BaseException:
        database.close()
        raise


def rebuild_pool(url: str, database: Database, progress: Progress) -> None:
    """Rebuild the index exactly once: opening the pool already does that if the index is lost."""
    with closing(open_pool(url, database, progress=progress)) as store:
        if not store._index.built:
            store.rebuild(progress)
