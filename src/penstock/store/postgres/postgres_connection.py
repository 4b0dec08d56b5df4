"""Connections to the server: calls, made again where that is safe, forks, and psycopg's errors as penstock's; and the
caller's own connection in place of a pool."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from penstock.core.names import kind_of
from penstock.engine.port import Conflict
from penstock.errors import (
    BadValue,
    OutcomeUnknown,
    PenstockError,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnsupportedOption,
)
from penstock.store.forks import reset_in_child
from penstock.store.postgres.location import Location
from penstock.store.postgres.wire import Call, Link, Query, Row, Wire
from penstock.store.sql.migrations import ANOTHER_SCHEMA
from penstock.store.sql.pool import Pool

T = TypeVar("T")
# How long a call waits for a connection: a server that restarts is back by then.
WAIT_SECONDS = 5.0
# How often a call is made on connections that break.
TRIES = 6
# How long a statement waits for what others have locked; then the call looks again.
PATIENCE = "2s"

# What statements run with. The tables grow from empty to millions of rows and shrink again
# within minutes, so plans must not depend on statistics: one made for an empty table would scan a full one.
_SETTINGS = {
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
    "enable_sort": "off", "jit": "off", "plan_cache_mode": "force_generic_plan",
}  # fmt: skip

# The whole transaction was undone, and may be tried again.
_AGAIN = (pg.DeadlockDetected, pg.SerializationFailure)
# The same, of a call on the engine, which looks again: also where a guard failed (1 / 0), an address or a name has come
# into use, or somebody held what it needs for two seconds.
CONFLICTS = (*_AGAIN, pg.DivisionByZero, pg.UniqueViolation, pg.LockNotAvailable)


def settings_call(ask: SimpleNamespace, *, local: bool) -> Call:
    """What gives a connection its settings; `local`: until the end of its transaction."""
    settings = _SETTINGS | {"lock_timeout": PATIENCE}
    return ask.settings, {"name": list(settings), "setting": list(settings.values()), "local": local}


class Connections:
    """The connections of one store."""

    #: Whether a call may say that it does not wait for the disk, and may do what others have left.
    relaxes = True

    def __init__(
        self, location: Location, begin: Callable[[Link], None] = lambda db: None, each: Sequence[Call] = ()
    ) -> None:
        self.location = location
        self._begin = begin  # what is done first with a new connection
        self._each = each  # what is sent first with every call
        self._pool = Pool(self.connect, location.pool_size, location.place)
        reset_in_child(self)

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared; behind a proxy that pools transactions the next server knows none."""
        return self.location.notify

    def connect(self, seconds: float = 0) -> Link:
        """A new connection. With `seconds`, retry that long: the server may be restarting."""
        ends, prepare = time.monotonic() + seconds, 1 if self.prepares else None
        settings: dict[str, Any] = {"autocommit": True, "fallback_application_name": "penstock"}
        if seconds:
            settings["connect_timeout"] = max(round(seconds), 2)
        while True:
            try:
                return Link.connect(self.location.conninfo, prepare_threshold=prepare, **settings)
            except psycopg.Error as error:
                if time.monotonic() + 0.1 > ends:
                    raise translated(error, self.location.place) from error
            time.sleep(0.1)

    def run(self, calls: Sequence[Call], *, twice: bool = False, patience: float | None = None) -> list[list[Row]]:
        """Send statements at once, as one transaction, and return the rows of each. Conflict where a guard failed.

        `twice`: it may be made again although it may have been done. `patience`: seconds to wait for a connection.
        """
        return self.attempt(lambda db: self.run_in(self._begun(db), calls), twice=twice, patience=patience)

    def run_in(self, db: Link, calls: Sequence[Call]) -> list[list[Row]]:
        """The same on one connection, as part of its transaction if it is in one; raises as the driver does."""
        if not self._each:
            return db.run(calls, prepare=True)
        return db.run([*self._each, *calls], prepare=False)[len(self._each) :]

    @contextmanager
    def session(self, *, snapshot: bool) -> Iterator[Link]:
        """One transaction of several round trips. `snapshot`: it only reads, and sees one moment.

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

    def transact(self, work: Callable[[psycopg.Connection], T]) -> T:
        """Do the work in one transaction; it is done again after a deadlock or on a connection that broke."""

        def make(db: Link) -> T:
            with db.transaction():
                return work(db)

        try:
            return self.attempt(make, twice=True, again=_AGAIN)
        except Conflict as error:
            raise StoreBusy(f"{self.location.place}: others were faster {TRIES} times: try again") from error

    def attempt(
        self, make: Callable[[Link], T], *, twice: bool, patience: float | None = None,
        again: tuple[type[Exception], ...] = (),
    ) -> T:  # fmt: skip
        """What a call answers; it is made again where that is safe, and after the errors `again`."""
        failures = 0
        while True:
            db = self._borrow(patience)
            try:
                return make(db)
            except psycopg.Error as error:
                failures += 1
                if failures == TRIES or not (isinstance(error, again) or (twice and db.broken)):
                    raise self._failed(db, error, done=not twice) from error
            finally:
                self._return(db)
            time.sleep(random.random() * 0.02 * failures)

    def _failed(self, db: Link, error: psycopg.Error, *, done: bool) -> Exception:
        """What to raise. `done`: the call may have been done before the connection broke."""
        place = self.location.place
        if isinstance(error, CONFLICTS):
            return Conflict()
        if not db.broken:
            return translated(error, place)
        if done:
            return OutcomeUnknown(
                f"the connection to {place} broke during the call: it may be stored or not; look first"
            )
        return StoreUnavailable(f"the connection to {place} broke: check that it runs")

    def _borrow(self, patience: float | None) -> Link:
        return self._pool.borrow(WAIT_SECONDS if patience is None else patience)

    def _return(self, db: Link) -> None:
        self._pool.give_back(db, usable=db.pgconn.transaction_status == TransactionStatus.IDLE)

    def close(self) -> None:
        """Close for good."""
        self._pool.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's connections must not be used, nor even closed, here."""
        # Never freed, so never closed: that would end the parent's sessions in the server.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool.idle))
        self._pool.reset()


class BoundConnection(Connections):
    """Calls go through one connection, and nothing is made again: that is for the caller to decide."""

    relaxes = False
    prepares = False

    def __init__(self, own: Connections, connection: object, queries: SimpleNamespace, identity: str) -> None:
        if isinstance(connection, psycopg.AsyncConnection):
            connection = _blocking(connection)
        if not isinstance(connection, psycopg.Connection):
            raise UnsupportedOption(
                f"bind was given {kind_of(connection)}: on PostgreSQL it needs a psycopg.Connection"
            )
        self.location = own.location
        self._db = connection
        self._wire = Wire(connection)
        self._queries = queries
        try:
            found = self._joined()
        except SchemaMismatch:
            found = None
        if f"postgresql:{found}" != identity:
            place = own.location.place
            raise BadValue(f"the connection does not lead to this store: bind one on {place}, same schema")

    def run(self, calls: Sequence[Call], *, twice: bool = False, patience: float | None = None) -> list[list[Row]]:
        with self.session(snapshot=False):
            return self.run_in(self._db, calls)

    def run_in(self, db: psycopg.Connection[Any], calls: Sequence[Call]) -> list[list[Row]]:
        return self._wire.run(calls, prepare=False)

    @contextmanager
    def session(self, *, snapshot: bool) -> Iterator[psycopg.Connection[Any]]:  # type: ignore[override]
        """A savepoint, with the settings that statements need; the caller's own are put back."""
        if self._db.info.transaction_status == TransactionStatus.IDLE:  # its last transaction has ended
            self._joined()
        query, settings = settings_call(self._queries, local=True)
        try:
            with self._db.transaction():
                (before,), _ = self._wire.run(
                    [(self._queries.settings_now, settings), (query, settings)], prepare=False
                )
                yield self._db
                self._wire.run([(query, {**settings, "setting": before[0]})], prepare=False)  # type: ignore[dict-item]
        except CONFLICTS as error:
            raise Conflict from error
        except psycopg.Error as error:
            raise translated(error, self.location.place) from error

    def _joined(self) -> object:
        """Join the caller's transaction, which begins here if its connection begins them by itself; the store's id."""
        if self._db.autocommit and self._db.info.transaction_status == TransactionStatus.IDLE:
            raise BadValue("the connection is in no transaction: bind inside `with connection.transaction():`")
        if self._db.pgconn.pipeline_status != PipelineStatus.OFF:
            raise BadValue("the connection is in a pipeline() block: end it before calling the bound broker")
        try:
            # A cursor of our own: the connection's may bind on the client's side (Django) or give rows as dicts.
            found = psycopg.RawCursor(self._db, row_factory=tuple_row).execute(self._queries.meta.sent, prepare=False)
            return next((value for name, value in found if name == "id"), None)
        except psycopg.Error as error:
            raise translated(error, self.location.place) from error

    def close(self) -> None:
        """The connection stays the caller's."""


def _blocking(connection: psycopg.AsyncConnection[Any]) -> psycopg.Connection[Any]:
    """The same session of the server, for calls that block; the caller must not use its own meanwhile."""
    heard = connection.pgconn.notice_handler, connection.pgconn.notify_handler
    twin: psycopg.Connection[Any] = psycopg.Connection(connection.pgconn)
    connection.pgconn.notice_handler, connection.pgconn.notify_handler = heard
    twin._pool = None  # as if it were another's to close
    return twin


def translated(error: psycopg.Error, place: str) -> PenstockError:
    """The error to raise instead when the connection lives or was never made, saying what to do next."""
    text = str(error).strip().partition("\n")[0]
    match error:
        case pg.LockNotAvailable() | pg.QueryCanceled() | pg.DeadlockDetected() | pg.SerializationFailure():
            return StoreBusy(f"{place}: somebody held what this call needs for too long ({text}): try again")
        case pg.TooManyConnections():
            return StoreBusy(f"{place} takes no more connections: raise max_connections, or lower pool_size")
        case pg.SequenceGeneratorLimitExceeded():
            return StoreFull(f"{place} has used up the ids of a tube ({text}): use another tube")
        case pg.DiskFull() | pg.OutOfMemory() | pg.ConfigurationLimitExceeded():
            return StoreFull(f"{place} has no room left ({text}): free some; deletes and acks may still work")
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return StoreCorrupt(f"{place} is damaged ({text}): it was left as it is; restore a backup")
        case pg.ReadOnlySqlTransaction():
            return StoreUnavailable(f"{place} is read-only, a standby perhaps: connect to the primary")
        case pg.InsufficientPrivilege():
            return StoreUnavailable(f"{place} refuses this user ({text}): grant it the schema")
        case (
            pg.UndefinedTable() | pg.UndefinedFunction() | pg.InvalidSchemaName() | pg.UndefinedObject()
            | pg.UndefinedColumn() | pg.FeatureNotSupported()
        ):  # fmt: skip
            return SchemaMismatch(f"{place} has another schema than this penstock ({text}): {ANOTHER_SCHEMA}")
        case pg.DuplicatePreparedStatement() | pg.InvalidSqlStatementName():
            return StoreUnavailable(f"{place} is behind a proxy that pools transactions ({text}): use notify=off")
        case psycopg.OperationalError():
            return StoreUnavailable(f"{place} cannot be reached ({text}): check that it runs and accepts this user")
    return StoreError(f"{place}: {text}")
