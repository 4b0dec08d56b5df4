"""Transactions: a step begins, commits, is started anew after a deadlock, and tells what its failure means."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import pymysql

from penstock.errors import OutcomeUnknown, PenstockError
from penstock.store.mysql import faults
from penstock.store.mysql.location import Location
from penstock.store.mysql.pool import Link, Pool
from penstock.store.mysql.wire import Rows

T = TypeVar("T")

# A deadlock costs microseconds to find and one of the two always wins, so many tries are cheap; a lock wait has
# cost LOCK_WAIT_SECONDS already.
_DEADLOCK_TRIES = 20
_LOCK_WAIT_TRIES = 2
_FIRST_PAUSE = 0.001
_LAST_PAUSE = 0.1


class Database:
    """Runs whole transactions on connections of a pool."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.name = location.name
        self._pool = Pool(location)

    def close(self) -> None:
        self._pool.close()

    def call(self, sql: str, *, safe: bool = False) -> Rows:
        """Statements that are one transaction, with its commit in one round trip.

        `safe`: doing it twice is as good as once, so a broken connection is no reason to give up.
        """
        return self.run(lambda link: link.finish(sql), safe=safe, committed=True)

    def read(self, sql: str, arguments: tuple[object, ...] = ()) -> Rows:
        """The rows of one query, in one round trip."""
        return self.run(lambda link: link.finish(link.filled(sql, arguments)), safe=True, committed=True)

    def run(self, work: Callable[[Link], T], *, safe: bool = False, committed: bool = False) -> T:
        """Do the work in one transaction; `committed`: it commits by itself, with its last words."""
        tries = lost = 0
        while True:
            link = self._pool.borrow()
            # Until the commit is sent, a connection that breaks takes the transaction with it.
            open_ended = committed
            broken = True
            try:
                done = work(link)
                open_ended = True
                if not committed:
                    link.commit()
                broken = False
                return done
            except (pymysql.MySQLError, OSError) as error:
                if faults.lost(error):
                    lost += 1
                    if lost > 1 or (open_ended and not safe):
                        raise self._gone(error, open_ended and not safe) from error
                    continue
                broken = not _rolled_back(link)
                tries += 1
                if not _again(error, tries):
                    raise self._told(error) from error
            except PenstockError:
                broken = not _rolled_back(link)
                raise
            finally:
                self._pool.give_back(link, broken=broken)
            time.sleep(min(_FIRST_PAUSE * 2**tries, _LAST_PAUSE) * random.random())

    def _gone(self, error: BaseException, unknown: bool) -> PenstockError:
        if unknown:
            return OutcomeUnknown(
                f"the connection to database {self.name} broke during the call ({error}): it may or may not be stored"
            )
        return faults.translated(error, self.name)

    def _told(self, error: BaseException) -> PenstockError:
        if faults.number(error) in faults.REFUSALS:
            return Refused(faults.number(error), str(error.args[1]))
        return faults.translated(error, self.name)


class Refused(PenstockError):
    """One of our procedures refused the call; `faults.REFUSALS` has the codes."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def _rolled_back(link: Link) -> bool:
    try:
        link.rollback()
    except (pymysql.MySQLError, OSError):
        return False
    return True


def _again(error: BaseException, tries: int) -> bool:
    code = faults.number(error)
    if code == faults.LOCK_WAIT:
        return tries < _LOCK_WAIT_TRIES
    return code in faults.RESTARTABLE and tries < _DEADLOCK_TRIES
