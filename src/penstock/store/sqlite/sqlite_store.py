"""The SQLite store: one file, several threads and processes, one write transaction per step.

The schema of a file is brought up to date when it is opened, by one process at a time.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

import apsw

from penstock.core.entry import record_maker, stands_alone
from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.store import Store, finish_drops
from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of
from penstock.store.sql.sql_queries import ID_BITS
from penstock.store.sqlite.sqlite_connection import BoundConnection, Connection, Transaction
from penstock.store.sqlite.sqlite_queries import Q
from penstock.store.sqlite.sqlite_step import SqliteStep
from penstock.store.sqlite.watching import Watch

MIGRATIONS = load_migrations("penstock.store.sqlite")
PROMISES = {
    "FULL": "a put that returned survives a power cut (WAL, synchronous=FULL)",
    "NORMAL": "a put that returned survives the end of any process; a power cut may lose the last moments "
    "(WAL, synchronous=NORMAL)",
}
# A WAL far beyond its checkpoint size means that some reader never ends.
_LARGE_WAL = 256 * 1024 * 1024
_LITTLE_SPACE = 256 * 1024 * 1024


def wall_clock() -> int:
    """The host's clock in milliseconds: all users of one file are on one host."""
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

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> SqliteStep:
        transaction = self._transaction(tubes) if write else self._connection.reading
        return SqliteStep(transaction.patient if size > 1 else transaction, self._clock, now)

    def _transaction(self, tubes: Sequence[Tube]) -> Transaction:
        temporary = bool(tubes) and tubes[0].temporary and all(tube.temporary for tube in tubes)
        return self._connection.relaxed if temporary else self._connection.durable

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """All of it in one function: where each call waits for the disk, the next finds the processor's caches cold,
        and what costs 5 µs in a row costs 25."""
        if self._clock is not wall_clock or not stands_alone(tube, entry):
            return None
        first, at_once, query = tube.no << ID_BITS, self._connection.at_once, Q.put_one
        values = (
            tube.no, first + (1 << ID_BITS), None, entry.rank1.base, entry.rank2.base, entry.pri, entry.ttl, entry.ttr,
            entry.extra,
        )  # fmt: skip
        transaction, make = self._transaction((tube,)), record_maker(entry)

        def put(payload: bytes) -> Record | None:
            row = at_once(transaction, query, (*values, payload))
            if row is None:
                return None
            return make(row[0] - first, row[1], payload)

        return put

    def bind(self, connection: object) -> SqliteStore:
        bound = BoundConnection(self._connection.path, connection)
        return SqliteStore(bound, self.identity, self._clock, None)

    def describe(self) -> Description:
        path, advice = self._connection.path, list[str]()
        with self._connection.reading as db:
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
        promise = PROMISES[self._connection.durable.synchronous]
        return Description("SQLite", apsw.sqlite_lib_version(), path, promise, schema, advice)

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


def open_sqlite(path: str, *, durable: bool = True, clock: Callable[[], int] | None = None) -> Store:
    """The store in a file, created or brought up to date."""
    connection = Connection(os.path.abspath(path), durable=durable)
    watch = Watch(connection.path, connection.data_version, lambda: connection.writes)
    try:
        store = SqliteStore(connection, f"sqlite:{migrate(connection)}", clock or wall_clock, watch)
        finish_drops(store)
    except BaseException:
        connection.close()
        raise
    return store


def migrate(connection: Connection) -> str:
    """Bring the schema up to date. Returns the store's random id."""
    with connection.durable as db:
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


def look_at_sqlite(path: str) -> Schema:
    """Which schema a file has; a missing file is not created."""
    if not os.path.exists(path):
        return schema_of(None, MIGRATIONS)
    connection = Connection(os.path.abspath(path), durable=True)
    try:
        with connection.reading as db:
            return schema_of(_stored_schema(db, path), MIGRATIONS)
    finally:
        connection.close()


def _stored_schema(db: apsw.Connection, path: str) -> int | None:
    """The number of a file's schema, None for a new file; SchemaMismatch if it is not one of ours."""
    stored = int(db.execute(Q.get_meta, ("schema",)).get) if db.execute(Q.has_meta).get else None
    must_fit(path, stored, MIGRATIONS, new="file")
    return stored
