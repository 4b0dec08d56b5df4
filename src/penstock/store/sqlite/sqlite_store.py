"""The SQLite store: one file, several threads and processes, one write transaction per step.

SqliteStep writes and finds tasks; the engine decides what to write. Opening a file migrates its schema, one process at
a time.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, groupby, takewhile
from operator import attrgetter
from types import SimpleNamespace, TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import apsw
from msgspec.structs import astuple, replace

from penstock.core.ending import STATUS_OF, SUPERSEDED_MS, kept_under
from penstock.core.entry import new_record, record_maker, stands_alone
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK
from penstock.core.lifecycle import Move, delivered, dispatched, round_limit
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER, Description, Finding
from penstock.core.task import NO_UTUBE, QUEUED, Entry, Record
from penstock.engine import port
from penstock.engine.port import CHANGED, MUTABLE, Acked, Flushed, Found, Row, TakeAnswer, TakeRequest
from penstock.engine.store import Store, finish_drops, first_found
from penstock.errors import StoreFull
from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of
from penstock.store.sql.sql_queries import COUNTED, ID_BITS, ID_MASK, Write, load_queries
from penstock.store.sql.sql_step import RowClasses, SqlStep, first_pk, group_values
from penstock.store.sqlite import sqlite_queries as queries
from penstock.store.sqlite.file import EAGER, PATIENT, Pause, locate
from penstock.store.sqlite.queues import Queues, count_removed, move_tasks
from penstock.store.sqlite.sqlite_connection import BoundConnection, Connection
from penstock.store.sqlite.sqlite_queries import AS_SEEN, NEW_FIELDS, Q, add_counts, as_json, insert_rows
from penstock.store.sqlite.watching import Watch

T = TypeVar("T")

MIGRATIONS = load_migrations("penstock.store.sqlite")
PROMISES = {
    True: "a put that returned survives a power cut (durability=full)",
    False: "a put that returned survives the end of any process; a power cut may lose the last moments "
    "(durability=relaxed)",
}
# A WAL far beyond its checkpoint size means that a read transaction never ends.
_LARGE_WAL = 256 * 1024 * 1024
_LITTLE_SPACE = 256 * 1024 * 1024
# Above every rank, for a take without max_pri.
_ANY_RANK = 2**62
_guard = attrgetter("session", "lease")
_new = attrgetter(*NEW_FIELDS)
_changed = attrgetter(*CHANGED)
_rewritten = attrgetter(*MUTABLE, "payload")
# Statements of hot calls, made once.
_ADD_TAKES = add_counts("taken", "take")
_ADD_ACKS = add_counts("taken", "done", "ack")
_DONE = STATUS_OF["ack"]


def wall_clock() -> int:
    """The time in milliseconds, by the host's clock: all processes that use a file are on one host."""
    return time.time_ns() // 1_000_000


class SqliteStore(Store):
    """The store in one file."""

    shared = True
    remote = False

    def __init__(self, connection: Connection, identity: str, clock: Callable[[], int], watch: Watch | None) -> None:
        super().__init__(identity)
        self._connection = connection
        self._clock = clock
        self._watch = watch

    def step(self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1) -> SqliteStep:
        pause = (EAGER if size == 1 else PATIENT) if write else None
        temporary = bool(tubes) and tubes[0].temporary and all(tube.temporary for tube in tubes)
        synced = write and self._connection.synced and not temporary
        return SqliteStep(self._connection, pause, synced, self._clock)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """See `Store.plain_put`. In a single function: a call that waits for the disk leaves the processor's caches
        cold, and then code that takes 5 µs in a loop takes 25."""
        if self._clock is not wall_clock or not stands_alone(tube, entry):
            return None
        first, at_once, query = tube.no << ID_BITS, self._connection.at_once, Q.put_one
        values = (
            tube.no, first + (1 << ID_BITS), entry.rank1.base, entry.rank2.base, entry.pri, entry.ttl, entry.ttr,
            entry.extra,
        )  # fmt: skip
        synced, make = self._connection.synced and not tube.temporary, record_maker(entry)

        def put(payload: bytes) -> Record | None:
            row = at_once(query, (*values, payload), synced=synced)
            if row is None:
                return None
            return make(row[0] - first, row[1], payload)

        return put

    def bind(self, connection: object) -> SqliteStore:
        bound = BoundConnection(self._connection.path, connection)
        return SqliteStore(bound, self.identity, self._clock, None)

    def describe(self) -> Description:
        path, advice = self._connection.path, list[str]()
        with self._connection.transaction(write=False) as db:
            schema = int(db.execute(Q.get_meta, ("schema",)).get)
            problem = db.execute("PRAGMA quick_check(1)").get
        if problem != "ok":
            advice.append(f"the file is damaged ({problem}): restore a backup")
        wal = f"{path}-wal"
        if os.path.exists(wal) and os.path.getsize(wal) > _LARGE_WAL:
            advice.append(f"{wal} has {os.path.getsize(wal) >> 20} MiB: end the reader that keeps it from being reset")
        free = shutil.disk_usage(os.path.dirname(path)).free
        if free < _LITTLE_SPACE:
            advice.append(f"only {free >> 20} MiB are free for {path}: make room before puts fail")
        promise = PROMISES[self._connection.synced]
        return Description("SQLite", apsw.sqlite_lib_version(), path, promise, schema, advice)

    def check(self, repair: bool) -> list[Finding]:
        with self._connection.transaction(write=False) as db:
            damage = [what for (what,) in db.execute("PRAGMA quick_check(10)") if what != "ok"]
        # Of a damaged file, the other data cannot be trusted, and a repair could lose more.
        found = [Finding("", None, f"the file is damaged: {what}", "restore a backup") for what in damage]
        return found or super().check(repair)

    def now(self) -> int:
        return self._clock()

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if watch and self._watch is not None:
            return self._watch.wait(wake, seconds)
        return super().wait(wake, seconds, watch=watch)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._connection.close()


def open_sqlite(url: str, clock: Callable[[], int] | None = None) -> Store:
    """Open the store in a file; creates the file or migrates its schema."""
    connection = Connection(*locate(url))
    watch = Watch(connection.path, connection.data_version)
    try:
        store = SqliteStore(connection, f"sqlite:{migrate(connection)}", clock or wall_clock, watch)
        finish_drops(store)
    except BaseException:
        connection.close()
        raise
    return store


def migrate(connection: Connection) -> str:
    """Migrate the schema. Returns the store's random id."""
    with connection.transaction() as db:
        stored = _stored_schema(db, connection.path)
        for migration in MIGRATIONS:
            if migration.number > (stored or 0):
                db.execute(migration.sql)
                db.execute(Q.set_meta, ("schema", str(migration.number)))
        id = db.execute(Q.get_meta, ("id",)).get
        if id is None:
            id = str(uuid4())
            db.execute(Q.set_meta, ("id", id))
        return str(id)


def look_at_sqlite(url: str) -> Schema:
    """Read which schema a file has, without creating a missing file."""
    path = locate(url).path
    if not os.path.exists(path):
        return schema_of(None, MIGRATIONS)
    with closing(Connection(path, durable=True)) as connection, connection.transaction(write=False) as db:
        return schema_of(_stored_schema(db, path), MIGRATIONS)


def _stored_schema(db: apsw.Connection, path: str) -> int | None:
    """The number of a file's schema, None for a new file. Raises SchemaMismatch if it is not one of penstock."""
    stored = int(db.execute(Q.get_meta, ("schema",)).get) if db.execute(Q.has_meta).get else None
    must_fit(path, stored, MIGRATIONS, new="file")
    return stored


class _Session:
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[object, ...]]:
        return self._db.execute(sql.replace("%s", "?"), _bound(arguments)).fetchall()

    def change(self, sql: str, arguments: Sequence[Any] = ()) -> int:
        self.rows(sql, arguments)
        return self._db.changes()


def _bound(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments with lists of ids or of names as JSON, names in hexadecimal."""
    return tuple(
        as_json([each.hex() if isinstance(each, bytes) else each for each in value])
        if isinstance(value, list)
        else value
        for value in arguments
    )


class SqliteVault:
    """Implements `store.pool.vault.Database` in one file."""

    queries: SimpleNamespace = load_queries("penstock.store.pool", fragments={
        "int": "INTEGER", "blob": "BLOB", "serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "for_update": "",
        "table_end": ") STRICT", "keyed_end": ") STRICT, WITHOUT ROWID",
        "among_ids": "IN (SELECT value FROM json_each(%s))",
        "among_names": "IN (SELECT unhex(value) FROM json_each(%s))",
    })  # fmt: skip
    # SQLite's limit for a row, less room for its other columns.
    most_bytes = 10**9 - 10**6

    def __init__(self, url: str) -> None:
        self._connection = Connection(*locate(url))
        self.label = f"SQLite {self._connection.path}"

    def read(self, sql: str, arguments: Sequence[object]) -> list[tuple[object, ...]]:
        with self._connection.transaction(write=False) as db:
            return _Session(db).rows(sql, arguments)

    def run(self, work: Callable[[_Session], T]) -> T:
        with self._connection.transaction() as db:
            return work(_Session(db))

    def write(self, guard: tuple[str, Sequence[object]], writes: Sequence[Write]) -> None:
        with self._connection.transaction() as db:
            if not _Session(db).change(*guard):
                raise port.Conflict
            for sql, rows in writes:
                db.executemany(sql.replace("%s", "?"), map(_bound, rows))

    def promise(self) -> str:
        return PROMISES[self._connection.synced]

    def close(self) -> None:
        self._connection.close()


class SqliteStep(SqlStep):
    """A transaction from `__enter__` to `__exit__`. What it has read cannot change before it ends."""

    Q = Q

    def __init__(self, connection: Connection, pause: Pause | None, synced: bool, clock: Callable[[], int]) -> None:
        self._connection = connection
        self._pause = pause
        self._synced = synced
        self._clock = clock

    def __enter__(self) -> SqliteStep:
        self.db = self._connection.begin(self._pause)
        self.execute = self.db.execute
        # Read after the lock is acquired: a step that waited for it must not write an old time.
        self.now = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.end(error, synced=self._synced)

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        if "ids" in values:
            values["ids"] = as_json(values["ids"])
        if "texts" in values:
            values["texts"] = as_json(values["texts"])
        values["now"] = self.now
        return self.execute(query, values).fetchall()

    def change(self, query: str, **values: Any) -> int:
        self.rows(query, **values)
        return self.db.changes()

    # tubes and counters

    def add_counts(self, tube: Tube, counts: Mapping[str, int], last_id: int = 0) -> None:
        names = [name for name, number in counts.items() if number and name in COUNTED]
        self.execute(add_counts(*names), (last_id, *[counts[name] for name in names], tube.no))
        if not self.db.changes():
            raise self.no_such_tube(tube)

    # put

    def _store(self, tube: Tube, entries: Sequence[Entry]) -> tuple[list[Record], int]:
        """Insert new tasks. Returns their records, and how many more tasks can be taken."""
        last, now, base = self.execute(Q.last_id, (tube.no,)).get, self.now, first_pk(tube)
        if last is None:
            raise self.no_such_tube(tube)
        if last + len(entries) > ID_MASK:
            raise StoreFull(f"tube {tube.name} has used up its {ID_MASK} ids: use another tube")
        if not tube.kind.leased:
            entries = self._named(tube, entries, last + 1)
        records = [new_record(entry, id, now) for id, entry in enumerate(entries, last + 1)]
        queues = None
        if tube.kind.per_utube:
            queues = Queues(self.db, tube, now, {record.utube or NO_UTUBE for record in records})
            records = [queues.place(record) if record.state == "r" else record for record in records]
        try:
            insert_rows(self.db, queries.INSERT_NEW, [(base | record.id, tube.no, *_new(record)) for record in records])
        except apsw.ConstraintError as error:  # an address is in use
            raise port.Conflict from error
        addresses = [record.address for record in records if record.address is not None] if tube.kind.leased else []
        if addresses:
            self.execute(Q.supersede_outcomes, (tube.no, as_json(addresses), now + SUPERSEDED_MS))
        states = [record.state for record in records]
        if delayed := states.count("~") + states.count("g"):
            self.add_counts(tube, {"delayed": delayed})
        return records, states.count("r") + (0 if queues is None else queues.write())

    def _named(self, tube: Tube, entries: Sequence[Entry], first: int) -> list[Entry]:
        """Give entries of an unleased kind their public ids. In a round tube, only a reply comes without one."""
        count = len(entries)
        if tube.kind.hand_out == CLOCK:
            return [self._element(tube, entry, id) for id, entry in enumerate(entries, first)]
        ms, seq = self.execute(Q.next_marks, (tube.no, self.now, count)).get
        marks = (shown_mark((ms, seq - count + place)) for place in range(1, count + 1))
        return [replace(entry, address=mark) for entry, mark in zip(entries, marks, strict=True)]

    def _element(self, tube: Tube, entry: Entry, id: int) -> Entry:
        if entry.address is not None:
            return entry
        name = f"reply-{id}"
        while self.rows(Q.by_names, tube=tube.no, texts=[name]):
            name += "-"
        return replace(entry, address=name)

    # take

    def take(self, request: TakeRequest) -> TakeAnswer:
        tubes = request.tubes
        handed = first_found(request, map(partial(self._take_from, request), range(len(tubes)), tubes))
        if request.blocked is not None and handed.alive and handed.due is None:
            self._register(request, bool(handed.records))
        return handed

    def _take_from(self, request: TakeRequest, place: int, tube: Tube) -> Found:
        looked = self.execute(Q.look, (tube.no, request.handle)).get
        if looked is None:
            raise self.no_such_tube(tube)
        next_at, session, paused = looked
        now, rank = self.now, None
        records: list[Record] = []
        free = session is not None and not paused
        if free and (next_at is None or next_at > now or place < request.forced):
            if request.count:
                records = self._hand_out(tube, request, session)
            if tube.kind.hand_out == CLOCK:
                rank = self.execute(Q.first_rank, (tube.no,)).get
        return Found(session, now, next_at, records, rank)

    def _hand_out(self, tube: Tube, request: TakeRequest, session: int) -> list[Record]:
        if not tube.kind.leased:
            top = round_limit(tube, self.now) if tube.kind.hand_out == CLOCK else 0
            found = self.execute(Q.to_hand_out, (tube.no, top, self.now, request.count))
            return self._hand_over(tube, [Record(*row) for row in found], new=True)
        if not (tube.fair and tube.utube_limit > 1):
            return self._lease(tube, request, session, request.count)
        # Each hand-out moves its micro-queue behind the others, so the next task is known only after it.
        turns = (self._lease(tube, request, session, 1) for _ in range(request.count))
        return list(chain.from_iterable(takewhile(bool, turns)))

    def _lease(self, tube: Tube, request: TakeRequest, session: int, count: int) -> list[Record]:
        no, now, call, top = tube.no, self.now, port.new_call(), request.max_pri
        found = self.execute(Q.to_lease, (no, _ANY_RANK if top is None else top, now, count, session, call))
        records = [Record(*row) for row in found]
        leased = len(records)
        if leased == 1:
            self.execute(Q.lease, (no << ID_BITS | records[0].id, now, session, call))
        elif leased:  # one statement: with one per task, a take of 100 took 1.5 times as long
            pks = as_json([no << ID_BITS | record.id for record in records])
            self.execute(Q.lease_many, (pks, now, session, call))
        else:
            return records
        if tube.fair:
            move_tasks(self.db, tube, now, [(record.utube or NO_UTUBE, "r", "t") for record in records])
        elif tube.kind.per_utube:
            self.db.executemany(Q.serve_queue, [(no, record.utube) for record in records])
        self.execute(_ADD_TAKES, (0, leased, leased, no))
        return records

    def _hand_over(self, tube: Tube, records: list[Record], *, new: bool) -> list[Record]:
        """Hand out tasks of a kind without leases; `new`: for the first time."""
        if not records:
            return []
        is_clock, count, base, now = tube.kind.hand_out == CLOCK, len(records), first_pk(tube), self.now
        serial = self.execute(Q.count_hand_outs, (tube.no, count if new and not is_clock else 0, count)).get - count
        handed = [
            dispatched(record, now) if is_clock else delivered(record, now, serial + place)
            for place, record in enumerate(records, 1)
        ]
        self.db.executemany(Q.hand_out, [(base | record.id, record.state, record.rank1, now) for record in handed])
        return handed

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        if self.counters(tube).paused:
            return []
        rows = self.execute(Q.delivered_first, (tube.no, count))
        old = list(takewhile(lambda record: (record.taken or 0) + elapsed <= self.now, (Record(*row) for row in rows)))
        rows.close()
        return self._hand_over(tube, old, new=False)

    def _register(self, request: TakeRequest, came: bool) -> None:
        for tube in request.tubes:
            if request.blocked == "register" and not came:
                self.execute(Q.count_waiter, (request.handle, tube.no, 1))
            elif request.blocked == "unregister" or (request.blocked == "unregister_if_found" and came):
                self.execute(Q.count_waiter, (request.handle, tube.no, -1))
                self.execute(Q.forget_waiter, (request.handle, tube.no))

    # ack

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        if not tube.kind.leased:
            names = dict(self.execute(Q.ack_named, (tube.no, as_json([move.name for move in moves]))))
            if names:
                self._count_acks(tube, [pk & ID_MASK for pk in names.values()])
            return Acked(set(names))
        if moves[0].verb == "delete":
            return self._delete(tube, moves[0].id)
        if len(moves) == 1 and not tube.kind.per_utube and 0 < (id := moves[0].id) <= ID_MASK:
            self.execute(Q.ack_alone, (abs(tube.no) << ID_BITS | id, moves[0].session, moves[0].lease, self.now))
            if self.db.changes():
                self._count_acks(tube, (id,))
                return Acked({id})
        no = None if moves[-1].seen is None else moves[-1].seen.group_no
        if no is not None and any(group.left == len(moves) for group in self.groups(tube, no=no)):
            moves = moves[:-1]  # the last one would end the group: it is the engine's
        gone = self._delete_held(tube, moves)
        return self._acked(tube, gone, moves) if gone else Acked(set())

    def _delete(self, tube: Tube, id: int) -> Acked:
        """Delete a task by its id, if its end has no further effects."""
        plain = 0 < id <= ID_MASK and not tube.kind.per_utube
        state = self.execute(Q.delete, (first_pk(tube) | id, self.now)).get if plain else None
        if state is None:
            return Acked(set())
        self.add_counts(tube, {STATE_COUNTER[state]: -1, "done": 1, "delete": 1}, id)
        return Acked({id})

    def _delete_held(self, tube: Tube, moves: Sequence[Move]) -> list[tuple[Any, ...]]:
        base, gone = first_pk(tube), list[tuple[Any, ...]]()
        for (session, lease), alike in groupby(moves, _guard):  # tasks of one take have the same guard
            pks = [base | move.id for move in alike if 0 < move.id <= ID_MASK]
            gone += self.execute(Q.ack_many, (as_json(pks), session, lease, self.now, len(moves))).fetchall()
        return gone

    def _acked(self, tube: Tube, gone: list[tuple[Any, ...]], moves: Sequence[Move]) -> Acked:
        """Update what depends on acked tasks, given their pk, micro-queue, address and group."""
        keys = {row[0] & ID_MASK for row in gone}
        self._count_acks(tube, keys)
        readied = count_removed(self.db, tube, self.now, [row[1] for row in gone]) if tube.kind.per_utube else 0
        if grouped := [row[3] for row in gone if row[3] is not None]:
            self.db.executemany(Q.count_down, list(Counter(grouped).items()))
        addressed = [row for row in gone if row[2] is not None]
        if addressed:
            results, until = {move.id: move.result for move in moves}, self.now + tube.retention
            insert_rows(self.db, queries.KEEP_RESULT, [
                (pk, tube.no, address, _DONE, results[pk & ID_MASK], until) for pk, _, address, _ in addressed
            ])  # fmt: skip
        return Acked(keys, readied, [row[0] & ID_MASK for row in addressed])

    def _count_acks(self, tube: Tube, ids: Collection[int]) -> None:
        count = len(ids)
        self.execute(_ADD_ACKS, (max(ids), -count, count, count, tube.no))
        if not self.db.changes():
            raise self.no_such_tube(tube)

    # changes

    def flush(self, delta: port.Delta) -> Flushed:
        flushed = Flushed()
        for group in delta.groups:
            if not self.change(Q.change_group, **group_values(group)):
                raise port.Conflict
        if delta.rows:
            readied = self._write_rows(delta.tube, delta.rows)
            if readied is None and delta.all_or_nothing:
                raise port.Conflict
            if readied is None:
                return Flushed(missed={delta.rows[0].before.id})
            flushed.readied[delta.tube.no] = readied
        for tube, entries in ((delta.tube, delta.fresh), *delta.works):
            if entries:
                flushed.note_new(delta, tube, entries, *self._store(tube, entries))
        if delta.erase_upto is not None:
            base = first_pk(delta.tube)
            self.rows(Q.erase, low=base, high=base | delta.erase_upto)
        return flushed

    def _write_rows(self, tube: Tube, rows: list[Row]) -> int | None:
        """Write changes of tasks. Returns how many became takeable, or None if a single task has changed since."""
        base, no, per_utube, alone = first_pk(tube), tube.no, tube.kind.per_utube, len(rows) == 1
        counts: dict[str, int] = {}
        deleted, updated, rewritten, outcomes = [], [], [], []
        highest = readied = 0
        for row in rows:
            before, after = row.before, row.after
            state = after.state
            seen: tuple[object, ...] = (base | before.id,)
            if alone:
                seen = (*seen, before.lease, before.state == "t", before.at, before.errors is not None)
            if state == "-":
                deleted.append(seen)
                highest = max(highest, before.id)
                if row.ending is not None and tube.kind.leased:
                    address = kept_under(before.address, row.ending)
                    if address is not None:
                        outcomes.append((seen[0], no, address, *astuple(row.ending), self.now + tube.retention))
                continue
            if per_utube:
                rank2 = 0 if tube.fair and state != "t" else after.rank2
                after = replace(after, state=QUEUED if state == "r" else state, rank2=rank2)
            else:
                readied += (state == "r") - (before.state == "r")
            if after.payload is before.payload:
                updated.append((*_changed(after), *seen))
            else:
                rewritten.append((*_rewritten(after), *seen))
        written = (queries.DELETE, deleted), (queries.UPDATE_STATE, updated), (queries.UPDATE_RECORD, rewritten)
        for query, values in written:
            self.db.executemany(query + AS_SEEN if alone else query, values)
        if not self.db.changes():
            return None
        if outcomes:
            insert_rows(self.db, queries.KEEP_OUTCOME, outcomes)
        classes = RowClasses(rows)
        for number, weights in enumerate(classes.weights):
            size = classes.of_rows.count(number)
            for name, weight in weights.items():
                counts[name] = counts.get(name, 0) + size * weight
        self.add_counts(tube, counts, highest)
        if not per_utube:
            return readied
        states = [(row.before.utube or NO_UTUBE, row.before.state, row.after.state) for row in rows]
        return move_tasks(self.db, tube, self.now, [move for move in states if move[1] in "rqt" or move[2] in "rt"])
