"""Connections to PostgreSQL by URL, calls on the caller's own connection (`bind`), and the translation of errors."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from penstock.core.names import kind_of, safe_url, shown
from penstock.engine.port import Conflict
from penstock.errors import BadValue, SchemaMismatch, StoreBusy, StoreError, StoreUnavailable, UnsupportedOption
from penstock.store.postgres.postgres_queries import Queries
from penstock.store.postgres.postgres_wire import Call, Link, Query, Row, Wire
from penstock.store.sql.server import AWAY, BUSY, DAMAGED, DENIED, FOREIGN, FULL, USED_UP, Meaning, Server

# The settings of all connections. Tables grow from empty to millions of rows and shrink again within minutes, so plans
# must not depend on statistics: a plan made for an empty table would scan a full one. A call that waits for a lock for
# two seconds is retried.
SETTINGS = {
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
    "enable_sort": "off", "jit": "off", "plan_cache_mode": "force_generic_plan", "lock_timeout": "2s",
}  # fmt: skip

# How long a broker is silent after a notification, because each takes a global lock at its commit.
_PAUSE_SECONDS = 0.01

# Errors after which the whole transaction was rolled back and may be retried: a deadlock, a failed guard (1 / 0), an
# address or a name that came into use, and a lock that another transaction held for two seconds.
CONFLICTS = (
    pg.DeadlockDetected, pg.SerializationFailure, pg.DivisionByZero, pg.UniqueViolation, pg.LockNotAvailable
)  # fmt: skip

_MEANINGS: list[tuple[tuple[type[Exception], ...], Meaning]] = [
    ((pg.LockNotAvailable, pg.QueryCanceled, pg.DeadlockDetected, pg.SerializationFailure), BUSY),
    ((pg.TooManyConnections,), (StoreBusy, "takes no more connections: raise max_connections, or lower pool_size")),
    ((pg.SequenceGeneratorLimitExceeded,), USED_UP),
    ((pg.DiskFull, pg.OutOfMemory, pg.ConfigurationLimitExceeded), FULL),
    ((pg.DataCorrupted, pg.IndexCorrupted), DAMAGED),
    ((pg.ReadOnlySqlTransaction,), (StoreUnavailable, "is read-only, a standby perhaps: connect to the primary")),
    ((pg.InsufficientPrivilege,), DENIED),
    ((pg.UndefinedTable, pg.UndefinedFunction, pg.InvalidSchemaName, pg.UndefinedObject, pg.UndefinedColumn), FOREIGN),
    ((pg.FeatureNotSupported,), FOREIGN),
    (
        (pg.DuplicatePreparedStatement, pg.InvalidSqlStatementName),
        (StoreUnavailable, "is behind a proxy that pools transactions ({text}): use notify=off"),
    ),
    ((psycopg.OperationalError,), AWAY),
]
_OLDEST_SERVER = 130000

# penstock's own URL parameters: default, allowed values, and how messages describe them. A schema's name must be short
# enough for names that are derived from it, and safe between quotes.
_OWN = {
    "schema": ("penstock", re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}"), "letters, digits and _, at most 48"),
    "notify": ("on", re.compile(r"on|off"), "on or off"),
    "pool_size": ("10", re.compile(r"[1-9][0-9]{0,2}|1000"), "a number from 1 to 1000"),
}


class Location(msgspec.Struct, frozen=True):
    """Where a store is. `place` names it in messages, without the password."""

    conninfo: str
    place: str
    schema: str
    notify: bool
    pool_size: int

    @property
    def quoted(self) -> str:
        """The schema as a quoted SQL identifier."""
        return f'"{self.schema}"'

    @property
    def channel(self) -> str:
        """The notification channel: one per schema, since channels belong to the whole database."""
        return f"penstock_{hashlib.sha256(self.schema.encode()).hexdigest()[:16]}"


def locate(url: str) -> Location:
    """Parse a URL. Raises BadValue if the driver or penstock does not understand it. Opens no connection."""
    base, _, query = url.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    rest = "&".join(part for part in query.split("&") if part.partition("=")[0] not in _OWN)
    try:
        known = conninfo_to_dict(conninfo := f"{base}?{rest}" if rest else base)
    except psycopg.ProgrammingError as error:
        # The message may quote the password, so only quoted names of parameters are kept.
        reason = re.sub(r'(?<!query parameter: )"[^"]*"', '"…"', str(error).strip())
        raise BadValue(
            f"store URL {safe_url(url)} is not understood ({reason}): {', '.join(_OWN)} are penstock's"
        ) from None
    own = {name: given.get(name, default) for name, (default, _, _) in _OWN.items()}
    for name, (_, allowed, wanted) in _OWN.items():
        if not allowed.fullmatch(own[name]):
            raise BadValue(f"parameter {name}={shown(own[name])} of store URL {safe_url(url)}: use {wanted}")
    place = f"PostgreSQL {known.get('host') or 'local socket'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
    return Location(conninfo, place, own["schema"], own["notify"] == "on", int(own["pool_size"]))


_PROGRAM = uuid4().hex[:8]


def this_process() -> str:
    """Return this process's name in notifications. It differs after a fork."""
    return f"{os.getpid()}-{_PROGRAM}"


class PostgresServer(Server[Link]):
    """The server of one store or, if `bare`, of a pool's database."""

    errors = (psycopg.Error,)
    _silent_until = 0.0
    _each: Sequence[Call] = ()  # statements that every transaction begins with

    def __init__(self, location: Location, *, bare: bool = False) -> None:
        self.location = location
        self.queries = Queries(location.quoted, location.channel)
        self._bare = bare
        if not (bare or location.notify):
            self._each = [self._set(SETTINGS, local=True)]
        super().__init__(location.pool_size, location.place)

    @property
    def prepares(self) -> bool:
        """Whether statements may be prepared: not behind a proxy that pools transactions, where sessions change."""
        return self.location.notify

    @property
    def sender(self) -> str | None:
        """This process's name for a notification; None for 10 ms after the last one, and with notify=off."""
        return this_process() if self.location.notify and time.monotonic() >= self._silent_until else None

    def open(self, seconds: float = 0) -> Link:
        ends = time.monotonic() + seconds
        settings: dict[str, Any] = {"connect_timeout": max(round(seconds), 2)} if seconds else {}
        while True:
            try:
                link = Link.connect(
                    self.location.conninfo, autocommit=True, prepare_threshold=None,
                    fallback_application_name="penstock", **settings,
                )  # fmt: skip
                link.each, link.notified = self._each, self._pause
                return link
            except psycopg.Error as error:
                if time.monotonic() + 0.1 > ends:
                    raise self.translated(error) from error
            time.sleep(0.1)

    def connect(self, seconds: float = 0) -> Link:
        link = self.open(seconds)
        try:
            with self.translating():
                if self.location.notify:
                    link.run([self._set(SETTINGS, local=False)])
                if not self._bare:  # repair temporary tubes whose tasks were lost in a server crash
                    link.run([self.queries.mend.call({})])
        except BaseException:
            link.close()
            raise
        link.prepares = self.prepares  # only now, when the tables exist: a failed PREPARE leaves its name in use
        return link

    def _set(self, settings: Mapping[str, str], *, local: bool) -> Call:
        """Return the statement that sets a connection's settings; with `local`, only for its current transaction."""
        query: Query = self.queries.set
        return query.call({"name": list(settings), "setting": list(settings.values()), "local": local})

    def send(self, calls: Sequence[Call], *, safe: bool = False) -> list[list[Row]]:
        """Send statements together, as one transaction. Returns the rows of each that has columns. Raises Conflict if a
        guard fails."""
        if self._each:
            calls = [*self._each, *calls]
        return self.attempt(lambda link: link.run(calls), safe=safe)

    def _pause(self) -> None:
        self._silent_until = time.monotonic() + _PAUSE_SECONDS

    def conflict(self, error: Exception) -> Conflict | None:
        return Conflict() if isinstance(error, CONFLICTS) else None

    def is_lost(self, connection: Link, error: Exception) -> bool:
        return connection.broken

    def meaning(self, error: Exception) -> Meaning:
        return next(
            (meaning for kinds, meaning in _MEANINGS if isinstance(error, kinds)), (StoreError, "failed: {text}")
        )

    # the schema

    def must_suit(self, link: Link) -> None:
        version, standby = link.run([self.queries.server.call({})])[0][0]
        if version < _OLDEST_SERVER:
            raise StoreUnavailable(f"{self.place} runs PostgreSQL {version // 10000}: penstock needs 13 or later")
        if standby:
            raise StoreUnavailable(f"{self.place} is a standby, which cannot be written: connect to the primary")

    def meta(self, link: Link) -> dict[str, str]:
        try:
            with link.transaction():
                return dict(link.run([self.queries.meta.call({})])[0])
        except (pg.UndefinedTable, pg.InvalidSchemaName):
            return {}

    def set_meta(self, link: Link, meta: dict[str, str]) -> None:
        link.run([self.queries.set_meta.call({"name": name, "value": value}) for name, value in meta.items()])

    @contextmanager
    def alone(self, link: Link) -> Iterator[None]:
        with link.transaction():
            link.run([self.queries.lock_schema.call({"schema": self.location.schema})])
            if not self.meta(link):
                link.execute(f"CREATE SCHEMA IF NOT EXISTS {self.location.quoted}".encode())
                link.run([self.queries.create_meta.call({})])
            yield

    def apply(self, link: Link, sql: str) -> None:
        link.execute(sql.replace("{schema}", self.location.quoted).encode())

    def after_fork(self) -> None:
        # Leak the connections: freeing would close them, and so end the parent's sessions on the server.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.pool.idle))
        super().after_fork()


class BoundServer(PostgresServer):
    """Runs calls on the caller's connection. Retries nothing: the caller decides that."""

    bound = True
    prepares = False

    def __init__(self, own: PostgresServer, connection: object, identity: str) -> None:
        if isinstance(connection, psycopg.AsyncConnection):
            connection = _blocking(connection)
        if not isinstance(connection, psycopg.Connection):
            raise UnsupportedOption(
                f"bind was given {kind_of(connection)}: on PostgreSQL it needs a psycopg.Connection"
            )
        self.location, self.place, self.queries = own.location, own.place, own.queries
        self._db = connection
        self._wire = Wire(connection.pgconn)
        try:
            found = self._joined()
        except SchemaMismatch:
            found = None
        if f"postgresql:{found}" != identity:
            raise BadValue(f"the connection is to another database: bind one on {self.place}, same schema")

    @property
    def sender(self) -> str | None:
        """Another name than this process's, which must receive the notifications, too: they are sent at the caller's
        commit. No pause: the server drops duplicates within a transaction."""
        return f"{this_process()}-bound" if self.location.notify else None

    @contextmanager
    def transaction(self, *, snapshot: bool) -> Iterator[Any]:
        """Run a savepoint with the settings that statements need, then restore the caller's settings."""
        if self._db.info.transaction_status == TransactionStatus.IDLE:  # its last transaction has ended
            self._joined()
        try:
            with self._db.transaction():
                asked = self.queries.settings.call({"texts": list(SETTINGS)})
                before: dict[str, str] = dict(self._wire.run([asked, self._set(SETTINGS, local=True)])[0])
                yield self._wire
                self._wire.run([self._set(before, local=True)])
        except psycopg.Error as error:
            raise self.conflict(error) or self.translated(error) from error

    def _joined(self) -> object:
        """Join the caller's transaction, or begin one unless it is in autocommit mode. Returns the store's id."""
        if self._db.autocommit and self._db.info.transaction_status == TransactionStatus.IDLE:
            raise BadValue("the connection is in no transaction: bind inside `with connection.transaction():`")
        if self._db.pgconn.pipeline_status != PipelineStatus.OFF:
            raise BadValue("the connection is in a pipeline() block: end it before calling the bound broker")
        try:
            # Not the connection's own cursor, which may bind parameters on the client (Django) or return dicts.
            found = psycopg.RawCursor(self._db, row_factory=tuple_row).execute(self.queries.meta.sent, prepare=False)
            return next((value for name, value in found if name == "id"), None)
        except psycopg.Error as error:
            raise self.translated(error) from error


def _blocking(connection: psycopg.AsyncConnection[Any]) -> psycopg.Connection[Any]:
    """Return a blocking connection on the same server session. The caller must not use its own one meanwhile."""
    heard = connection.pgconn.notice_handler, connection.pgconn.notify_handler
    twin: psycopg.Connection[Any] = psycopg.Connection(connection.pgconn)
    connection.pgconn.notice_handler, connection.pgconn.notify_handler = heard
    twin._pool = None  # the original connection closes it
    return twin
