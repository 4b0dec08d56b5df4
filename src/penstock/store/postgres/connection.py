"""Connections to the server: the driver's pool, calls that are made again when that is safe, and what a fork does."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from penstock.engine.port import Conflict
from penstock.errors import StoreBusy, StoreUnavailable
from penstock.store.forks import reset_in_child
from penstock.store.postgres import faults
from penstock.store.postgres.location import Location
from penstock.store.postgres.wire import Call, Link, Query, Row

T = TypeVar("T")
# How long a call waits for a connection: a server that restarts is back by then.
WAIT_SECONDS = 5.0
# A call on a connection that broke is made again so often.
TRIES = 6
# How long a statement waits for what others have locked; then the call looks again.
PATIENCE = "2s"

_NOTHING: Call = Query(""), {}


class Connections:
    """The pool of one store."""

    #: Whether a call may say that it does not wait for the disk, and may add up counters.
    relaxes = True

    def __init__(
        self, location: Location, begin: Callable[[Link], None] = lambda db: None, each: Call = _NOTHING
    ) -> None:
        self.location = location
        self._begin = begin  # what is done first with a new connection
        self._each = each  # what is sent first with every call, where a connection keeps nothing
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Link] | None = None
        # What was given back last: a lone caller passes the pool by, which takes a fifth of the time of a put.
        self._at_hand: list[Link] = []
        self._asking = 0  # callers who ask the pool
        self._closed = False
        reset_in_child(self)

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared; behind a proxy that pools transactions the next server knows none."""
        return self.location.notify

    def connect(self) -> Link:
        """A connection of its own, outside the pool."""
        try:
            return Link.connect(self.location.conninfo, **self._settings())  # type: ignore[arg-type]
        except psycopg.Error as error:
            raise faults.translated(error, self.location.place) from error

    def run(self, calls: Sequence[Call], *, twice: bool = False, patience: float | None = None) -> list[list[Row]]:
        """Send statements at once, as one transaction; what each answers. Conflict where a guard failed.

        `twice`: it may be made again although it may have been done. `patience`: so many seconds to wait for a
        connection, if not the usual.
        """
        return self._made(lambda db: self.run_in(self._begun(db), calls), twice, patience)

    def run_in(self, db: Link, calls: Sequence[Call]) -> list[list[Row]]:
        """The same on one connection, as part of its transaction if it is in one; raises as the driver does."""
        if self.prepares:
            return db.run(calls, prepare=True)
        return db.run([self._each, *calls], prepare=False)[1:]

    @contextmanager
    def session(self, *, snapshot: bool) -> Iterator[Link]:
        """One transaction of several round trips. `snapshot`: it reads, and sees one moment.

        A client that stops meanwhile does not keep its locks for long: the server ends the transaction.
        """
        db = self._borrow(None)
        ended = False
        try:
            begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if snapshot else "BEGIN"
            idle = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
            self._begun(db).run([(Query(begin), {}), (Query(idle), {})], prepare=False)
            try:
                yield db
            except BaseException:
                ended = True
                if not db.broken:
                    db.run([(Query("ROLLBACK"), {})], prepare=False)
                raise
            ended = True
            db.run([(Query("COMMIT"), {})], prepare=False)
        except psycopg.Error as error:
            raise self._failed(db, error, done=ended) from error
        finally:
            self._return(db)

    def _begun(self, db: Link) -> Link:
        if not db.ready:
            self._begin(db)
            db.ready = True
        return db

    def call(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """The rows of one statement as psycopg sends it, which may be made twice."""
        return self._made(lambda db: db.execute(query, values, binary=True).fetchall(), True, None)

    def transact(self, work: Callable[[psycopg.Connection], T]) -> T:
        """Do the work in one transaction; it is done again after a deadlock or on a connection that broke."""
        failures = 0
        while True:
            db = self._borrow(None)
            try:
                with db.transaction():
                    return work(db)
            except psycopg.Error as error:
                failures += 1
                if failures >= TRIES or not (db.broken or isinstance(error, faults.AGAIN)):
                    raise faults.translated(error, self.location.place) from error
            finally:
                self._return(db)
            time.sleep(random.random() * 0.02 * failures)

    def _made(self, make: Callable[[Link], T], twice: bool, patience: float | None) -> T:
        """What a call answers, made again where that is safe."""
        failures = 0
        while True:
            db = self._borrow(patience)
            try:
                return make(db)
            except psycopg.Error as error:
                failures += 1
                if not (twice and db.broken and failures < TRIES):
                    raise self._failed(db, error, done=not twice) from error
            finally:
                self._return(db)
            time.sleep(random.random() * 0.02 * failures)

    def _failed(self, db: Link, error: psycopg.Error, *, done: bool = True) -> Exception:
        """What to raise: `done`, where the call may have been done before the connection broke."""
        if isinstance(error, faults.CONFLICTS):
            return Conflict()
        if not db.broken:
            return faults.translated(error, self.location.place)
        return faults.unknown(self.location.place) if done else faults.lost(self.location.place)

    def close(self) -> None:
        """Close for good."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        while (db := self._found()) is not None:
            db.close()
        if pool is not None:
            pool.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's connections must not be used, nor even closed, here."""
        self._lock = threading.Lock()
        for parents in (self._pool, self._at_hand):
            # Never freed, so never closed: that would end the parent's sessions in the server.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(parents))
        self._pool, self._at_hand, self._asking = None, [], 0

    def _settings(self) -> dict[str, object]:
        prepare = 1 if self.prepares else None
        return {"autocommit": True, "prepare_threshold": prepare, "fallback_application_name": "penstock"}

    def _open(self) -> ConnectionPool[Link]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"this broker on {self.location.place} is closed: connect again")
            if self._pool is None:
                self._pool = ConnectionPool(
                    self.location.conninfo,
                    connection_class=Link,
                    kwargs=self._settings(),
                    min_size=0,
                    max_size=self.location.pool_size,
                    timeout=WAIT_SECONDS,
                    reconnect_timeout=WAIT_SECONDS,  # then the next caller's attempt begins at once
                    num_workers=1,
                    open=True,
                    name="penstock",
                )
            return self._pool

    def _borrow(self, patience: float | None) -> Link:
        while True:
            db = self._found() or self._asked(WAIT_SECONDS if patience is None else patience)
            if not db.hung_up():
                return db
            db.close()
            self._return(db)

    def _found(self) -> Link | None:
        try:
            return self._at_hand.pop()
        except IndexError:
            return None

    def _asked(self, seconds: float) -> Link:
        pool = self._pool or self._open()
        with self._lock:
            self._asking += 1
        try:
            # Whoever gave one back before this was counted did not bring it to the pool.
            return self._found() or pool.getconn(seconds)
        except PoolTimeout as error:
            raise self._none_left(pool) from error
        except psycopg.Error as error:
            raise faults.translated(error, self.location.place) from error
        finally:
            with self._lock:
                self._asking -= 1

    def _return(self, db: Link) -> None:
        if not self._at_hand and db.pgconn.transaction_status == TransactionStatus.IDLE:
            self._at_hand.append(db)
            if self._pool is not None and not self._asking:
                return
            found = self._found()
            if found is None:  # another caller has it
                return
            db = found
        pool = self._pool
        if pool is None:
            db.close()
        else:
            pool.putconn(db)

    def _none_left(self, pool: ConnectionPool[Link]) -> StoreBusy | StoreUnavailable:
        stats = pool.get_stats()
        place = self.location.place
        if stats.get("connections_lost", 0) + stats.get("connections_errors", 0) and stats["pool_size"] < pool.max_size:
            return StoreUnavailable(f"{place} cannot be reached: check that it runs")
        return StoreBusy(f"all {pool.max_size} connections to {place} were busy for {WAIT_SECONDS} s: raise pool_size")
