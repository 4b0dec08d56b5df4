"""The caller's own connection in place of the store's: every call is a savepoint of the caller's transaction."""

from __future__ import annotations

import os
import threading

import apsw

from penstock.core.names import kind_of
from penstock.errors import BadValue, UnsupportedOption
from penstock.store.sqlite.connection import Connection, Transaction
from penstock.store.sqlite.faults import translated


class BoundConnection(Connection):
    """A Connection that begins and ends nothing but savepoints."""

    def __init__(self, path: str, connection: object) -> None:
        super().__init__(path, durable=True)
        if not isinstance(connection, apsw.Connection):
            raise UnsupportedOption(
                f"bind was given {kind_of(connection)}: on SQLite it needs an apsw.Connection, because two SQLite "
                "libraries on one file in one process destroy each other's locks"
            )
        if not connection.filename or not os.path.samefile(connection.filename, path):
            raise BadValue(
                f"the connection is on {connection.filename or 'no file'}, not on {path}: bind one on that file"
            )
        if not connection.in_transaction:
            raise BadValue("the connection is in no transaction: execute BEGIN IMMEDIATE first")
        self.lock = threading.Lock()
        self._db = connection

    def begin(self, transaction: Transaction) -> apsw.Connection:
        """A savepoint, whatever the caller's durability is."""
        assert self._db is not None
        try:
            self._db.execute("SAVEPOINT penstock")
        except apsw.Error as error:
            raise translated(error, self.path) from error
        return self._db

    def at_once(
        self, transaction: Transaction, query: str, values: tuple[apsw.SQLiteValue, ...]
    ) -> tuple[int, ...] | None:
        """A statement is undone alone when it fails, so it needs no savepoint."""
        assert self._db is not None
        try:
            row: tuple[int, ...] = self._db.execute(query, values).get
        except apsw.MismatchError:
            return None
        except apsw.Error as error:
            raise translated(error, self.path) from error
        return row

    def end(self, transaction: Transaction, failure: BaseException | None) -> None:
        """Keep what was done, or undo this call alone."""
        assert self._db is not None
        try:
            if failure is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK TO penstock")
            self._db.execute("RELEASE penstock")
        except apsw.Error as error:
            raise translated(error, self.path) from error
        if isinstance(failure, apsw.Error):
            raise translated(failure, self.path) from failure

    def close(self) -> None:
        """The connection stays the caller's."""

    def after_fork(self) -> None:
        """The connection stays the caller's."""
