"""The caller's own connection in place of the pool: every call is a savepoint of the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from penstock.core.names import kind_of
from penstock.engine.port import Conflict
from penstock.errors import BadValue, StoreCorrupt, UnsupportedOption
from penstock.store.postgres.connection import CONFLICTS, Connections, translated
from penstock.store.postgres.schema import settings_call
from penstock.store.postgres.wire import Call, Row, adapt, pack


class _Text(bytes):
    """A parameter as it is sent, in the text format."""


class _Binary(bytes):
    """The same in the binary format."""


class _TextDumper(Dumper):
    format = Format.TEXT

    def dump(self, obj: _Text) -> _Text:
        return obj


class _BinaryDumper(_TextDumper):
    format = Format.BINARY


class BoundConnection(Connections):
    """Calls go through one connection, and nothing is made again: that is for the caller to decide."""

    relaxes = False
    prepares = False

    def __init__(self, own: Connections, connection: object, queries: SimpleNamespace, identity: str) -> None:
        if not isinstance(connection, psycopg.Connection):
            raise UnsupportedOption(
                f"bind was given {kind_of(connection)}: on PostgreSQL it needs a psycopg.Connection"
            )
        self.location = own.location
        self._db = connection
        self._queries = queries
        try:
            found = self._joined()
        except StoreCorrupt:
            found = None
        if f"postgresql:{found}" != identity:
            place = own.location.place
            raise BadValue(f"the connection does not lead to this store: bind one on {place}, same schema")

    def run(self, calls: Sequence[Call], *, twice: bool = False, patience: float | None = None) -> list[list[Row]]:
        with self.session(snapshot=False):
            return self.run_in(self._db, calls)

    def run_in(self, db: psycopg.Connection[Any], calls: Sequence[Call]) -> list[list[Row]]:
        return [self._execute(call) for call in calls]

    @contextmanager
    def session(self, *, snapshot: bool) -> Iterator[psycopg.Connection[Any]]:  # type: ignore[override]
        """A savepoint, with the settings that statements need; the caller's own are put back."""
        if self._db.info.transaction_status == TransactionStatus.IDLE:  # its last transaction has ended
            self._joined()
        query, settings = settings_call(self._queries, local=True)
        try:
            with self._db.transaction():
                before = self._execute((self._queries.settings_now, settings))[0][0]
                self._execute((query, settings))
                yield self._db
                self._execute((query, {**settings, "setting": before}))
        except CONFLICTS as error:
            raise Conflict from error
        except psycopg.Error as error:
            raise translated(error, self.location.place) from error

    def _execute(self, call: Call) -> list[Row]:
        # A cursor of our own: the connection's may bind on the client's side (Django) or give rows as dicts. Not
        # prepared: the connection may be behind a proxy.
        packed = pack(*call)
        cursor = psycopg.RawCursor(self._db, row_factory=tuple_row)
        adapt(cursor)
        cursor.adapters.register_dumper(_Text, _TextDumper)
        cursor.adapters.register_dumper(_Binary, _BinaryDumper)
        given = [
            None if value is None else _Text(value) if form == Format.TEXT else _Binary(value)
            for value, form in zip(packed.given, packed.formats, strict=True)
        ]
        cursor.execute(call[0].sent, given, binary=True, prepare=False)
        return cursor.fetchall() if cursor.description else [(max(cursor.rowcount, 0),)]

    def _joined(self) -> object:
        """Join the caller's transaction, which begins here if its connection begins them by itself; the store's id."""
        if self._db.autocommit and self._db.info.transaction_status == TransactionStatus.IDLE:
            raise BadValue("the connection is in no transaction: bind inside `with connection.transaction():`")
        try:
            meta: dict[str, object] = dict(self._execute((self._queries.meta, {})))
            return meta.get("id")
        except psycopg.Error as error:
            raise translated(error, self.location.place) from error

    def close(self) -> None:
        """The connection stays the caller's."""
