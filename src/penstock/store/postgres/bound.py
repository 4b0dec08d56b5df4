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
from penstock.store.postgres import faults
from penstock.store.postgres.connection import PATIENCE, Connections
from penstock.store.postgres.wire import Call, Packed, Row, adapt


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

    def __init__(self, own: Connections, connection: object, asked: SimpleNamespace, identity: str) -> None:
        super().__init__(own.location)
        if not isinstance(connection, psycopg.Connection):
            raise UnsupportedOption(
                f"bind was given {kind_of(connection)}: on PostgreSQL it needs a psycopg.Connection"
            )
        self._db = connection
        self._queries = asked
        try:
            found = self._joined()
        except StoreCorrupt as error:
            raise _elsewhere(own.location.place) from error
        if f"postgresql:{found}" != identity:
            raise _elsewhere(own.location.place)

    def run(self, calls: Sequence[Call], *, twice: bool = False, patience: float | None = None) -> list[list[Row]]:
        """What the statements answer; where one fails, all of them are undone, and nothing else."""
        with self.session(snapshot=False):
            return self.run_in(self._db, calls)

    def run_in(self, db: psycopg.Connection[Any], calls: Sequence[Call]) -> list[list[Row]]:
        """The same as part of a savepoint."""
        return [self._execute(call) for call in calls]

    @contextmanager
    def session(self, *, snapshot: bool) -> Iterator[psycopg.Connection[Any]]:  # type: ignore[override]
        """A savepoint, with the settings that statements need; the caller's own are put back."""
        if self._db.info.transaction_status == TransactionStatus.IDLE:  # its last transaction has ended
            self._joined()
        try:
            with self._db.transaction():
                before = self._execute((self._queries.settings_before, {}))[0]
                self._execute((self._queries.settings, {"local": True, "patience": PATIENCE}))
                yield self._db
                self._execute((self._queries.settings_back, {f"s{place}": old for place, old in enumerate(before, 1)}))
        except faults.CONFLICTS as error:
            raise Conflict from error
        except psycopg.Error as error:
            raise faults.translated(error, self.location.place) from error

    def _execute(self, call: Call) -> list[Row]:
        # A cursor of our own: the connection's may bind on the client's side (Django) or give rows as dicts. Not
        # prepared: the connection may be behind a proxy.
        query, values = call
        cursor = psycopg.RawCursor(self._db, row_factory=tuple_row)
        adapt(cursor)
        cursor.adapters.register_dumper(_Text, _TextDumper)
        cursor.adapters.register_dumper(_Binary, _BinaryDumper)
        packed = values if isinstance(values, Packed) else Packed(query, values)
        given = [
            None if value is None else _Text(value) if form == Format.TEXT else _Binary(value)
            for value, form in zip(packed.given, packed.formats, strict=True)
        ]
        cursor.execute(query.sent, given, binary=True, prepare=False)
        return cursor.fetchall() if cursor.description else [(max(cursor.rowcount, 0),)]

    def _joined(self) -> object:
        """Be part of the caller's transaction, which begins here if its connection begins them by itself."""
        if self._db.autocommit and self._db.info.transaction_status == TransactionStatus.IDLE:
            raise BadValue("the connection is in no transaction: bind inside `with connection.transaction():`")
        try:
            rows = self._execute((self._queries.store_id, {}))
        except psycopg.Error as error:
            raise faults.translated(error, self.location.place) from error
        return rows[0][0] if rows else None

    def close(self) -> None:
        """The connection stays the caller's."""

    def after_fork(self) -> None:
        """The connection stays the caller's."""


def _elsewhere(place: str) -> BadValue:
    return BadValue(f"the connection does not lead to this store: bind one on {place}, same schema")
