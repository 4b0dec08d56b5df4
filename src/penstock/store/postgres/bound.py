"""The caller's own connection in place of the pool: every call is a savepoint of the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from penstock.core.names import kind_of
from penstock.errors import BadValue, StoreCorrupt, UnsupportedOption
from penstock.store.postgres import faults
from penstock.store.postgres.arrays import adapt
from penstock.store.postgres.connection import Connections, Row


class BoundConnection(Connections):
    """Calls go through one connection, and nothing is made again: that is for the caller to decide."""

    def __init__(self, own: Connections, connection: object, begin: str, identity: str) -> None:
        super().__init__(own.location)
        if not isinstance(connection, psycopg.Connection):
            raise UnsupportedOption(
                f"bind was given {kind_of(connection)}: on PostgreSQL it needs a psycopg.Connection"
            )
        self._db = connection
        self._begin = begin
        try:
            found = self._joined()
        except StoreCorrupt as error:
            raise _elsewhere(own.location.place) from error
        if f"postgresql:{found}" != identity:
            raise _elsewhere(own.location.place)

    def call(
        self, query: str, values: Sequence[object] = (), *, twice: bool = False, patience: float | None = None
    ) -> list[Row]:
        """The rows that the statement answers; one that fails is undone alone."""
        if self._db.info.transaction_status == TransactionStatus.IDLE:  # its last transaction has ended
            self._joined()
        try:
            with self._db.transaction():
                return self._execute(query, values).fetchall()
        except psycopg.Error as error:
            if error.sqlstate in faults.OWN:
                raise
            raise faults.translated(error, self.location.place) from error

    def _execute(self, query: str, values: Sequence[object] = ()) -> psycopg.Cursor[Row]:
        # A cursor of our own: the connection's may bind on the client's side (Django) or give rows as dicts. Not
        # prepared: the connection may be behind a proxy.
        cursor = psycopg.Cursor(self._db, row_factory=tuple_row)
        adapt(cursor)
        return cursor.execute(query, values, binary=True, prepare=False)

    def _joined(self) -> object:
        """Be part of the caller's transaction, which begins here if its connection begins them by itself."""
        if self._db.autocommit and self._db.info.transaction_status == TransactionStatus.IDLE:
            raise BadValue("the connection is in no transaction: bind inside `with connection.transaction():`")
        try:
            row = self._execute(self._begin).fetchone()
        except psycopg.Error as error:
            raise faults.translated(error, self.location.place) from error
        return row[0] if row else None

    def close(self) -> None:
        """The connection stays the caller's."""

    def after_fork(self) -> None:
        """The connection stays the caller's."""


def _elsewhere(place: str) -> BadValue:
    return BadValue(f"the connection does not lead to this store: bind one on {place}, same schema")
