"""The caller's own connection in place of the pool: every call is a savepoint of the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pymysql
from pymysql.constants import SERVER_STATUS

from penstock.core.names import kind_of
from penstock.errors import BadValue, SchemaMismatch, UnsupportedOption
from penstock.store.mysql.database import Database
from penstock.store.mysql.pool import ROOM_FOR_IDS, Link
from penstock.store.mysql.queries import Q
from penstock.store.mysql.wire import Rows

T = TypeVar("T")


class BoundLink(Link):
    """The caller's connection: perhaps one statement a packet only, and its commit is the caller's."""

    def __init__(self, connection: pymysql.Connection[pymysql.cursors.Cursor]) -> None:
        self._use(connection)
        self.change(f"SET SESSION {ROOM_FOR_IDS}, @penstock_bound = 1")

    def finish(self, *statements: str) -> Rows:
        return self.packet(*statements)

    def finish_each(self, *statements: str) -> Rows:
        return self.packet(*statements)

    def numbers(self, *statements: str) -> list[int]:
        numbers = []
        for statement in statements:
            self.change(self._fitting(statement))
            numbers.append(self.last_number)
        return [*numbers, 0]

    def prepared_put(self) -> None:
        return None

    def packet(self, *statements: str) -> Rows:
        return [row for statement in statements for row in super(BoundLink, self).packet(statement)]


class BoundDatabase(Database):
    """Calls go through one connection, and nothing is made again: that is for the caller to decide."""

    def __init__(self, own: Database, connection: object, identity: str) -> None:
        self.location = own.location
        self.name = own.name
        if not isinstance(connection, pymysql.Connection):
            raise UnsupportedOption(f"bind was given {kind_of(connection)}: on MySQL it needs a pymysql.Connection")
        begun = connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS  # type: ignore[attr-defined]
        if connection.get_autocommit() and not begun:
            raise BadValue("the connection is in no transaction: call its begin() first")
        try:
            self._link = BoundLink(connection)
            meta = dict(self._link.rows(Q.all_meta))
        except pymysql.MySQLError as error:
            told = self._told(error)
            if not isinstance(told, SchemaMismatch):
                raise told from error
            meta = {}
        if f"mysql:{meta.get('id')}" != identity:
            raise BadValue(f"the connection does not lead to this store: bind one on database {own.name}")

    def run(self, work: Callable[[Link], T], *, safe: bool = False, committed: bool = False) -> T:
        """Do the work in a savepoint; a failure undoes this call alone."""
        link = self._link
        try:
            link.change("SAVEPOINT penstock")
            try:
                done = work(link)
            except BaseException:
                link.change("ROLLBACK TO SAVEPOINT penstock")
                raise
            link.change("RELEASE SAVEPOINT penstock")
        except (pymysql.MySQLError, OSError) as error:
            raise self._told(error) from error
        return done

    def close(self) -> None:
        """The connection stays the caller's."""
