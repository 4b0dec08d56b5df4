"""The SQLite store: one file, several threads and processes, one write transaction per step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from penstock.core.entry import stands_alone
from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.store import EngineStore
from penstock.store.sql.queries import ID_BITS
from penstock.store.sqlite.bound import BoundConnection
from penstock.store.sqlite.connection import Connection, Transaction
from penstock.store.sqlite.describe import describe
from penstock.store.sqlite.queries import Q
from penstock.store.sqlite.schema import migrate
from penstock.store.sqlite.step import SqliteStep
from penstock.store.sqlite.watching import Watch


def wall_clock() -> int:
    """The host's clock in milliseconds: all users of one file are on one host."""
    return time.time_ns() // 1_000_000


class SqliteDatabase:
    """Keeps `engine.port.Database` in one file."""

    shared = True
    remote = False

    def __init__(self, connection: Connection, identity: str, clock: Callable[[], int], watch: Watch | None) -> None:
        self._connection = connection
        self._clock = clock
        self._watch = watch
        self.identity = identity

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> SqliteStep:
        return SqliteStep(self._transaction(tubes, write=write, size=size), self._clock, now)

    def _transaction(self, tubes: Sequence[Tube], *, write: bool, size: int = 1) -> Transaction:
        if not write:
            return self._connection.reading
        transaction = self._connection.durable
        if tubes and tubes[0].temporary and all(tube.temporary for tube in tubes):
            transaction = self._connection.relaxed
        return transaction.patient if size > 1 else transaction

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """All of it in one function: where each call waits for the disk, the next finds the processor's caches cold,
        and what costs 5 µs in a row costs 25."""
        if self._clock is not wall_clock or not stands_alone(tube, entry):
            return None
        first, at_once, query = tube.no << ID_BITS, self._connection.at_once, Q.put_one
        rank1, rank2, pri, ttl, ttr = entry.rank1.base, entry.rank2.base, entry.pri, entry.ttl, entry.ttr
        most, callback = entry.max_attempts, entry.callback
        values = (tube.no, first + (1 << ID_BITS), None, rank1, rank2, pri, ttl, ttr, most, callback)
        transaction = self._transaction((tube,), write=True)

        def put(payload: bytes) -> Record | None:
            row = at_once(transaction, query, (*values, payload))
            if row is None:
                return None
            pk, created = row
            expires = None if ttl is None else created + ttl
            return Record(
                pk - first, "r", rank1, rank2, pri, None, 0, 0, created, None, expires, expires, ttr, most, None, None,
                callback, payload,
            )  # fmt: skip

        return put

    def bind(self, connection: object) -> SqliteDatabase:
        bound = BoundConnection(self._connection.path, connection)
        return SqliteDatabase(bound, self.identity, self._clock, None)

    def describe(self) -> Description:
        with self._connection.reading as db:
            schema = int(db.execute(Q.get_meta, ("schema",)).get)
            return describe(db, self._connection.path, self._connection.durable.synchronous, schema)

    def now(self) -> int:
        return self._clock()

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if watch and self._watch is not None:
            return self._watch.wait(wake, seconds)
        wake.wait(seconds)
        return False

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._connection.close()


def open_sqlite(path: str, *, durable: bool = True, clock: Callable[[], int] | None = None) -> EngineStore:
    """The store in a file, created or brought up to date."""
    connection = Connection(os.path.abspath(path), durable=durable)
    watch = Watch(connection.path, connection.data_version, lambda: connection.writes)
    try:
        store = EngineStore(SqliteDatabase(connection, f"sqlite:{migrate(connection)}", clock or wall_clock, watch))
        store.finish_drops()
    except BaseException:
        connection.close()
        raise
    return store
