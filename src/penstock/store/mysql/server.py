"""Transactions: packets and longer work on connections of a pool, or on the caller's own connection (`bind`)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pymysql
from pymysql.constants import SERVER_STATUS

from penstock.core.names import kind_of
from penstock.engine.port import Conflict
from penstock.errors import BadValue, OutcomeUnknown, PenstockError, SchemaMismatch, UnsupportedOption
from penstock.store.forks import reset_in_child
from penstock.store.mysql import mysql_connection as errors
from penstock.store.mysql.mysql_connection import NEEDED, Answer, Link, Location, error_number, is_lost, translated
from penstock.store.mysql.mysql_queries import Q
from penstock.store.mysql.wire import Ok
from penstock.store.sql.pool import Pool

T = TypeVar("T")

# How long a call waits for a connection of the pool.
POOL_SECONDS = 10.0
# A deadlock costs microseconds to find and one of the two always wins, so many tries are cheap; a lock wait has
# already cost LOCK_WAIT_SECONDS.
_DEADLOCK_TRIES = 20
_LOCK_WAIT_TRIES = 5
_FIRST_PAUSE = 0.001
_LAST_PAUSE = 0.1


class Refused(Exception):
    """A guard of a packet failed (`connection.GUARDS`), and all of it was undone."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Server:
    """Runs whole transactions on connections of a pool."""

    #: Whether reads must lock to see what others committed after the transaction began.
    bound = False

    def __init__(self, location: Location) -> None:
        self.location = location
        self.name = location.name
        self.pool = Pool(self._connect, location.pool_size, f"database {location.name}")
        reset_in_child(self)

    def _connect(self, seconds: float) -> Link:
        try:
            return Link.open(self.location)
        except (pymysql.MySQLError, OSError) as error:
            raise translated(error, self.name) from error

    def close(self) -> None:
        self.pool.close()

    def after_fork(self) -> None:
        """In a child: the parent's connections are the parent's. Dropping them closes our copy of the socket only."""
        self.pool.reset()

    def borrow(self) -> Link:
        """A connection for several round trips in one transaction; `give_back` ends it."""
        return self.pool.borrow(POOL_SECONDS)

    def give_back(self, link: Link, *, done: bool) -> None:
        """Commit if `done`, else undo."""
        broken = True
        try:
            if done:
                link.commit()
            broken = not done and not link.rolled_back()
        except (pymysql.MySQLError, OSError) as error:
            raise self._lost(error, unknown=True) if is_lost(error) else self.error_for(error) from error
        finally:
            self.pool.give_back(link, usable=not broken)

    def send(self, statements: Sequence[str], *, safe: bool = False) -> Answer:
        """Send statements as one transaction. Conflict if others were in the way, Refused if a guard failed.

        `safe`: doing it twice is as good as once, so it is retried after a broken connection.
        """
        return self.run(lambda link: link.send(statements), safe=safe, committed=True, again=False)

    def run(self, work: Callable[[Link], T], *, safe: bool = False, committed: bool = False, again: bool = True) -> T:
        """Do the work in one transaction. `committed`: the work commits by itself, at its end. `again`: retry it after
        a deadlock; else that is a Conflict."""
        tries = lost = 0
        while True:
            link = self.borrow()
            # Until the commit is sent, a connection that breaks takes the transaction with it.
            committing, broken = committed, True
            try:
                done = work(link)
                committing = True
                if not committed:
                    link.commit()
                broken = False
                return done
            except (pymysql.MySQLError, OSError) as error:
                if is_lost(error):
                    lost += 1
                    if lost > 1 or (committing and not safe):
                        raise self._lost(error, unknown=committing and not safe) from error
                    continue
                broken, code = not link.rolled_back(), error_number(error)
                if code == errors.TOO_MANY_PREPARED:
                    link.prepares = False
                    continue
                tries += 1
                most = _LOCK_WAIT_TRIES if code == errors.LOCK_WAIT else _DEADLOCK_TRIES
                if not (again and code in errors.RESTARTABLE and tries < most):
                    raise self.error_for(error, conflict=not again) from error
            except (PenstockError, Conflict):
                broken = not link.rolled_back()
                raise
            finally:
                self.pool.give_back(link, usable=not broken)
            time.sleep(min(_FIRST_PAUSE * 2**tries, _LAST_PAUSE) * random.random())

    def run_prepared(self, *statements: tuple[str, bytes], again: bool = True) -> list[Ok] | None:
        """Send prepared statements with values, and commit. Returns None if the server does not prepare them."""

        def work(link: Link) -> list[Ok] | None:
            return None if link.calls is None else link.calls.run(*statements, (Q.end_one, b""))

        return None if self.bound else self.run(work, committed=True, again=again)

    def _lost(self, error: BaseException, *, unknown: bool) -> PenstockError:
        """The error for a connection that broke."""
        told = f"the connection to database {self.name} broke during the call ({error}): it may or may not be stored"
        return OutcomeUnknown(told) if unknown else translated(error, self.name)

    def error_for(self, error: BaseException, *, conflict: bool = True) -> Exception:
        """What an error of the server means to a step, which retries conflicts itself."""
        code = error_number(error)
        if conflict and code in errors.RESTARTABLE:
            return Conflict()
        return Refused(code) if code in errors.GUARDS else translated(error, self.name)


class BoundLink(Link):
    """The caller's connection: perhaps it takes only one statement per packet, and its commit is the caller's."""

    joins = False

    def send(self, statements: Sequence[str], *, commit: bool = True) -> Answer:
        return super().send(statements, commit=False)


class BoundServer(Server):
    """Every call is a savepoint of the caller's transaction. Nothing is retried: that is for the caller to decide."""

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
            self._link.change(f"SET SESSION {NEEDED}")
            meta = dict(self._link.rows(Q.all_meta))
        except pymysql.MySQLError as error:
            failure = self.error_for(error, conflict=False)
            if not isinstance(failure, SchemaMismatch):
                raise failure from error
            meta = {}
        if f"mysql:{meta.get('id')}" != identity:
            raise BadValue(f"the connection does not lead to this store: bind one on database {own.name}")

    def borrow(self) -> Link:
        if self._link.snapshot_isolation:  # others put, take and ack all the time: their changes are no conflict
            self._link.change("SET SESSION innodb_snapshot_isolation = OFF")
        self._link.change("SAVEPOINT penstock")
        return self._link

    def give_back(self, link: Link, *, done: bool) -> None:
        try:
            link.change("RELEASE SAVEPOINT penstock" if done else "ROLLBACK TO SAVEPOINT penstock")
            if link.snapshot_isolation:
                link.change("SET SESSION innodb_snapshot_isolation = ON")
        except (pymysql.MySQLError, OSError) as error:
            # The savepoint is gone because a deadlock undid the caller's whole transaction: report that.
            before = error.__context__
            cause = error if before is None else before.__cause__ or before
            raise translated(cause, self.name) from error

    def run(self, work: Callable[[Link], T], *, safe: bool = False, committed: bool = False, again: bool = True) -> T:
        try:
            link = self.borrow()
            try:
                result = work(link)
            except BaseException:
                self.give_back(link, done=False)
                raise
        except (pymysql.MySQLError, OSError) as error:
            raise self.error_for(error) from error
        self.give_back(link, done=True)
        return result

    def close(self) -> None:
        """The connection stays the caller's."""
