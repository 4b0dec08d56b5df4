"""Transactions: a packet is sent, is begun anew after a deadlock where nobody decides otherwise, and tells what its
failure means."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pymysql

from penstock.engine.port import Conflict
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.store.mysql import faults
from penstock.store.mysql.location import Location
from penstock.store.mysql.pool import Answer, Link, Pool, Statement

T = TypeVar("T")

# A deadlock costs microseconds to find and one of the two always wins, so many tries are cheap; a lock wait has
# cost LOCK_WAIT_SECONDS already.
_DEADLOCK_TRIES = 20
_LOCK_WAIT_TRIES = 5
_FIRST_PAUSE = 0.001
_LAST_PAUSE = 0.1


class Refused(Exception):
    """A guard of a packet failed (`faults.GUARDS`), and all of it was undone."""

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
        self.pool = Pool(location)

    def close(self) -> None:
        self.pool.close()

    def send(self, statements: Sequence[Statement], *, safe: bool = False) -> Answer:
        """Statements that are one transaction. Conflict where others were in the way, Refused where a guard failed.

        `safe`: doing it twice is as good as once, so a broken connection is no reason to give up.
        """
        return self.run(lambda link: link.send(statements), safe=safe, committed=True, again=False)

    def run(self, work: Callable[[Link], T], *, safe: bool = False, committed: bool = False, again: bool = True) -> T:
        """Do the work in one transaction. `committed`: it commits by itself, with its last words. `again`: after a
        deadlock it begins anew, else that is a Conflict."""
        tries = lost = 0
        while True:
            link = self.pool.borrow()
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
                        raise self.gone(error, open_ended and not safe) from error
                    continue
                broken = not rolled_back(link)
                if faults.number(error) == faults.TOO_MANY_PREPARED:
                    link.prepare_no_more()
                    continue
                tries += 1
                if not (again and _again(error, tries)):
                    raise self.told(error) if again else told(error, self.name) from error
            except (PenstockError, Conflict):
                broken = not rolled_back(link)
                raise
            finally:
                self.pool.give_back(link, broken=broken)
            time.sleep(min(_FIRST_PAUSE * 2**tries, _LAST_PAUSE) * random.random())

    def gone(self, error: BaseException, unknown: bool) -> PenstockError:
        """The error for a connection that broke."""
        if unknown:
            return OutcomeUnknown(
                f"the connection to database {self.name} broke during the call ({error}): it may or may not be stored"
            )
        return faults.translated(error, self.name)

    def told(self, error: BaseException) -> Exception:
        """The error for what was tried often enough."""
        code = faults.number(error)
        return Refused(code) if code in faults.GUARDS else faults.translated(error, self.name)


def told(error: BaseException, where: str) -> Exception:
    """What an error means to a step, which begins anew by itself."""
    code = faults.number(error)
    if code in faults.RESTARTABLE:
        return Conflict()
    return Refused(code) if code in faults.GUARDS else faults.translated(error, where)


def rolled_back(link: Link) -> bool:
    """Undo what is under way; False where the connection broke."""
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
