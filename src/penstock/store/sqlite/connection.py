"""One connection to the file, its transactions, and what a fork does to it.

All threads of a broker share it: writers are one at a time in SQLite anyway, and a lock in the process is
cheaper than SQLite's own waiting.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from pathlib import Path
from types import TracebackType

import apsw

from penstock.errors import StoreUnavailable
from penstock.store.forks import reset_in_child
from penstock.store.sqlite.busy import EAGER, PATIENT, BusyHandler, Pause, insist
from penstock.store.sqlite.faults import translated
from penstock.store.sqlite.location import inode, refuse_network
from penstock.store.sqlite.sharing import Shared

# SQLite 3.7.0 to 3.51.2 can corrupt a WAL database when two connections write and checkpoint at once.
_SAFE_SQLITE = (3, 51, 3)
# Of pages in memory; behind them stands the system's own cache. A page that is split gets for a moment a number behind
# all others, and then the commit looks through the whole cache: with 32 MiB of it, taking and acking batches from a
# million tasks cost a third more than from ten thousand, with 4 MiB a tenth, and no other work became dearer.
_CACHE_KIB = 4 * 1024
# Of the log that is written into the file once it has them all: SQLite's own number where each commit is synced, since
# a sync of a log that still grows took 300 µs and not 180. Else 8 MiB, so that of a page that every step writes the
# file gets one for many: a take and ack of micro-queues cost a tenth less processor time.
_LOG_PAGES, _RELAXED_LOG_PAGES = 1000, 4000
# Of a new file. A put writes two pages to the log: half the default saves a tenth of a put, a sixth of take and ack.
_PAGE_BYTES = 2048


class Connection:
    """`with connection.durable as db:` is one transaction, on disk when the block has ended.

    `relaxed` may lose the last moments before a power cut, and nothing else. `reading` sees one moment of the
    file and waits for nobody. Durable ones of several threads share a commit: who ends while others wait for their
    turn leaves the transaction open to the next of them, and all have waited for the same sync of the disk.
    """

    def __init__(self, path: str, *, durable: bool) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._db: apsw.Connection | None = None
        self._file = (0, 0)
        self._synchronous = ""
        self._closed = False
        self._queue: deque[Pause] = deque()  # how patient each thread is that waits to write
        self._shared: Shared | None = None  # what the next of them goes on with
        self.writes = 0  # transactions that may have written, so that a watch of the file knows our own
        self._busy = BusyHandler(self._queue)
        self.reading = Transaction(self, "")
        self.relaxed = Transaction(self, "NORMAL")
        self.durable = Transaction(self, "FULL") if durable else self.relaxed
        reset_in_child(self)

    def open(self) -> apsw.Connection:
        """The connection of this process, opened when it is first needed. The lock is held."""
        if self._db is None:
            if self._closed:
                raise StoreUnavailable(f"this broker on {self.path} is closed: connect again")
            self._db = _open(self.path, self._busy)
            self._db.wal_autocheckpoint(_RELAXED_LOG_PAGES if self.durable is self.relaxed else _LOG_PAGES)
            self._synchronous = ""
            self._file = inode(self.path)
        return self._db

    def begin(self, transaction: Transaction) -> apsw.Connection:
        """Take the lock and begin a write transaction, or a reading one where nothing is to be synchronous."""
        synchronous = transaction.synchronous
        if not self.lock.acquire(blocking=False):
            self._queue_up(transaction)
        try:
            db = self._db or self.open()
            if self._shared is not None:
                if synchronous:
                    db.execute("SAVEPOINT penstock")
                    return db
                self._commit_shared()
            if not synchronous:
                db.execute("BEGIN")
                return db
            if synchronous != self._synchronous:
                self._be_synchronous(db, synchronous)
            self._busy.pause = transaction.pause
            self.writes += 1
            db.execute("BEGIN IMMEDIATE")
            if inode(self.path) != self._file:
                raise self._replaced()
        except apsw.Error as error:
            self.lock.release()
            raise translated(error, self.path) from error
        except BaseException:
            self._leave_nothing_open()
            self.lock.release()
            raise
        return db

    def _leave_nothing_open(self) -> None:
        """Roll back what nobody goes on with, because of an interrupt or a missing file: it would lock everyone out."""
        if self._db is not None and self._shared is None and self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _queue_up(self, transaction: Transaction) -> None:
        """Wait for the lock, so that whoever has it knows of writers that do."""
        if not transaction.synchronous:
            self.lock.acquire()
            return
        self._queue.append(transaction.pause)
        try:
            self.lock.acquire()
        finally:
            self._queue.remove(transaction.pause)

    def _be_synchronous(self, db: apsw.Connection, synchronous: str) -> None:
        self._synchronous = ""  # an interrupt in between must not leave it wrong
        db.execute(f"PRAGMA synchronous = {synchronous}")
        self._synchronous = synchronous

    def _replaced(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.path} was replaced under this broker: close it and connect anew")

    def end(self, transaction: Transaction, failure: BaseException | None) -> None:
        """Commit, or roll back after a failure, and let go of the lock."""
        assert self._db is not None
        if self._shared is not None or (self._queue and failure is None and transaction.synchronous == "FULL"):
            self._end_shared(failure)
            return
        db = self._db
        try:
            if failure is None:
                db.execute("COMMIT")
            elif db.in_transaction:
                db.execute("ROLLBACK")
        except apsw.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise translated(error, self.path) from error
        finally:
            self.lock.release()
        if isinstance(failure, apsw.Error):
            raise translated(failure, self.path) from failure

    def _end_shared(self, failure: BaseException | None) -> None:
        """Leave the transaction to the next that waits, or commit it; after a failure undo this step alone."""
        shared = self._shared
        try:
            if shared is None:
                shared = self._shared = Shared()
            else:
                self._leave_savepoint(shared, failure)
            if not self._queue or not shared.has_room():
                self._commit_shared()
        except BaseException:
            self._leave_nothing_open()
            raise
        finally:
            self.lock.release()
        error = shared.wait(self._commit_left) if failure is None else failure
        if isinstance(error, apsw.Error):
            raise translated(error, self.path) from error

    def _leave_savepoint(self, shared: Shared, failure: BaseException | None) -> None:
        assert self._db is not None
        try:
            if failure is not None:
                self._db.execute("ROLLBACK TO penstock")
            self._db.execute("RELEASE penstock")
        except apsw.Error as error:  # a full disk and its like end the whole transaction, with all savepoints
            self._abandon(shared, failure if isinstance(failure, apsw.Error) else error)

    def _commit_shared(self) -> None:
        """Commit what waits for one who shares it, if there is anything. The lock is held."""
        shared = self._shared
        if shared is None:
            return
        assert self._db is not None
        try:
            self._db.execute("COMMIT")
        except apsw.Error as error:
            self._abandon(shared, error)
        except BaseException:  # an interrupt, which is raised once the commit is done: others wait to be told
            if not self._db.in_transaction:
                self._told(shared, None)
            raise
        else:
            self._told(shared, None)

    def _commit_left(self, shared: Shared) -> None:
        """The same, where the thread that was to go on with it has not come."""
        with self.lock:
            if self._shared is shared:
                self._commit_shared()

    def _abandon(self, shared: Shared, error: apsw.Error) -> None:
        """Nothing of it is stored."""
        assert self._db is not None
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        finally:
            self._told(shared, error)

    def _told(self, shared: Shared, error: apsw.Error | None) -> None:
        """It is over, and those who wait for it know how."""
        self._shared = None
        shared.end(error)

    def at_once(
        self, transaction: Transaction, query: str, values: tuple[apsw.SQLiteValue, ...]
    ) -> tuple[int, ...] | None:
        """One statement that is a transaction of its own, and the row it answers; None: it refused its key.

        It saves BEGIN and COMMIT: 10 of the 45 µs that a put took beside the disk.
        """
        if not self.lock.acquire(blocking=False):
            if transaction.synchronous == "FULL":
                return self._among_others(transaction, query, values)
            self._queue_up(transaction)
        try:
            db = self._db or self.open()
            if self._shared is not None:
                self._commit_shared()
            if transaction.synchronous != self._synchronous:
                self._be_synchronous(db, transaction.synchronous)
            if inode(self.path) != self._file:
                raise self._replaced()
            self._busy.pause = transaction.pause
            self.writes += 1
            row: tuple[int, ...] = db.execute(query, values).get
        except apsw.MismatchError:
            return None
        except apsw.Error as error:
            raise translated(error, self.path) from error
        finally:
            self.lock.release()
        return row

    def _among_others(
        self, transaction: Transaction, query: str, values: tuple[apsw.SQLiteValue, ...]
    ) -> tuple[int, ...] | None:
        """The same, in a transaction that other threads may share."""
        with transaction as db:
            try:
                row: tuple[int, ...] = db.execute(query, values).get
            except apsw.MismatchError:  # which undoes the statement alone
                return None
        return row

    def data_version(self) -> int:
        """A number that changes when another connection has committed, and only then."""
        with self.lock:
            try:
                # Not the file control of the same name: that one moves with our own commits, too.
                return int(self.open().execute("PRAGMA data_version").get)
            except apsw.Error as error:
                raise translated(error, self.path) from error

    def close(self) -> None:
        """Close for good."""
        with self.lock:
            self._closed = True
            self._commit_shared()
            if self._db is not None:
                self._db.close()
                self._db = None

    def after_fork(self) -> None:
        """In a forked child: the parent's connection must not be used, nor even closed, here."""
        if self._db is not None:
            # Never freed, so never closed: closing would run SQLite code on the parent's locks and mutexes.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))
        self._db = None
        self.lock = threading.Lock()
        self._queue.clear()
        self._shared = None


class Transaction:
    """A context manager that begins, and commits or rolls back."""

    def __init__(self, connection: Connection, synchronous: str, pause: Pause = EAGER) -> None:
        self._connection = connection
        self.synchronous = synchronous
        self.pause = pause
        #: The same for steps that do more the later they begin, and so let others go first.
        self.patient = self if pause is PATIENT else Transaction(connection, synchronous, PATIENT)

    def __enter__(self) -> apsw.Connection:
        return self._connection.begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.end(self, error)


def _open(path: str, busy: BusyHandler) -> apsw.Connection:
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < _SAFE_SQLITE:
        raise StoreUnavailable(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt WAL databases: "
            "install apsw 3.51.3 or later from its wheel, which carries its own SQLite"
        )
    refuse_network(Path(os.path.realpath(path)).parent)  # a link is followed: the log lies beside the real file
    try:
        db = apsw.Connection(path)
        # Plans must not depend on bound values, else SQLite prepares hot queries anew at every call.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.set_busy_handler(busy)
        db.pragma("page_size", _PAGE_BYTES)
        if insist(lambda: db.pragma("journal_mode", "wal")) != "wal":  # two may be opening a new file at once
            raise StoreUnavailable(
                f"{path} cannot use write-ahead logging: use a local disk that supports shared memory"
            )
        db.execute(f"PRAGMA temp_store = MEMORY; PRAGMA cache_size = -{_CACHE_KIB}")
    except apsw.Error as error:
        raise translated(error, path) from error
    return db
