"""The caller's own connection in place of the pool: every call is a savepoint of the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from penstock.core.names import kind_of
from penstock.engine.port import Conflict
from penstock.errors import BadValue, SchemaMismatch, UnsupportedOption
from penstock.store.postgres.connection import CONFLICTS, Connections, translated
from penstock.store.postgres.schema import settings_call
from penstock.store.postgres.wire import Call, Row, Wire


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
                self._wire.run([(query, {**settings, "setting": before[0]})], prepare=False)
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
