"""The caller's own connection in place of the pool: every packet is a savepoint of the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pymysql
from pymysql.constants import SERVER_STATUS

from penstock.core.names import kind_of
from penstock.errors import BadValue, SchemaMismatch, UnsupportedOption
from penstock.store.mysql import faults
from penstock.store.mysql.pool import NEEDED, Answer, Link, Statement
from penstock.store.mysql.queries import Q
from penstock.store.mysql.server import Server, told
from penstock.store.mysql.wire import ask

T = TypeVar("T")


class BoundLink(Link):
    """The caller's connection: perhaps one statement a packet only, and its commit is the caller's."""

    def __init__(self, connection: pymysql.Connection[pymysql.cursors.Cursor]) -> None:
        self._use(connection)
        self.change(f"SET SESSION {NEEDED}")

    def send(self, statements: Sequence[Statement], *, commit: bool = True) -> Answer:
        return super().send(statements, commit=False)

    def _asked(self, texts: list[str]) -> Answer:
        answer = Answer([], [])
        for text in texts:
            self._packets([text])  # refuses what is too large
            results, changed = ask(self._connection, text)
            answer.results.extend(results)
            answer.told.extend(changed)
        return answer


class BoundServer(Server):
    """Calls go through one connection, and nothing is made again: that is for the caller to decide."""

    bound = True

    def __init__(self, own: Server, connection: object, identity: str) -> None:
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
            failure = self.told(error)
            if not isinstance(failure, SchemaMismatch):
                raise failure from error
            meta = {}
        if f"mysql:{meta.get('id')}" != identity:
            raise BadValue(f"the connection does not lead to this store: bind one on database {own.name}")

    def run(self, work: Callable[[Link], T], *, safe: bool = False, committed: bool = False, again: bool = True) -> T:
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
            cause = error.__context__ if isinstance(error.__context__, pymysql.MySQLError) else error
            if faults.number(cause) == faults.DEADLOCK:  # the caller's whole transaction is undone
                raise faults.translated(cause, self.name) from error
            raise told(error, self.name) from error
        return done

    def close(self) -> None:
        """The connection stays the caller's."""
