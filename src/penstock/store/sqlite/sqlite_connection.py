"""One connection to the file, its transactions, and its state after a fork.

All threads of a broker share the connection: SQLite has one writer at a time anyway, and a lock in the process is
cheaper than waiting for SQLite's.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any

import apsw

from penstock.core.names import kind_of
from penstock.errors import BadValue, StoreUnavailable, UnsupportedOption
from penstock.store.forks import reset_in_child
from penstock.store.sqlite.file import EAGER, PATIENT, BusyHandler, Pause, open_file, translated

# A checkpoint copies the log into the file once the log has this many pages. If each commit is synced, that is SQLite's
# default: syncing a log that still grows took 300 µs instead of 180. Else it is 8 MiB, so that a page that every step
# writes is copied once for many steps: a take and ack of micro-queues cost a tenth less processor time.
_LOG_PAGES, _RELAXED_LOG_PAGES = 1000, 4000
# Seconds between two checks that the log still exists: right after a write, one takes 40 µs, a quarter of a put.
_LOG_SECONDS = 0.1
# The most steps of a shared transaction. Threads that wait for its commit add none, but those whose step failed can.
_MOST_STEPS = 64
# After this many seconds without a commit, the thread that should have continued must have been interrupted.
_PATIENCE = 0.1

Values = tuple[Any, ...]


class Shared:
    """A transaction that stays open for the next thread that waits for the lock."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: apsw.Error | None = None
        self.steps = 1


class Connection:
    """`with connection.durable as db:` is one transaction, which is on disk when the block has ended.

    A power cut may undo the last `relaxed` transactions, but loses nothing else. `reading` sees a snapshot of the file
    and waits for no other process. Durable transactions of several threads share a commit: a thread that ends its block
    while others wait for the lock leaves the transaction open for the next, and all wait for the same sync.
    """

    def __init__(self, path: str, durable: bool) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._db: apsw.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None  # the inode of the write-ahead log, once it exists
        self._look_at_log = 0.0
        self._synchronous = ""
        self._closed = False
        self._queue: deque[Pause] = deque()  # the pauses of the threads that wait to write
        self._shared: Shared | None = None  # the transaction that the next of these threads continues
        self.writes = 0  # counts write transactions, so that the watch of the file can ignore our own
        self._busy = BusyHandler(self._queue)
        self.reading = Transaction(self, "")
        self.relaxed = Transaction(self, "NORMAL")
        self.durable = Transaction(self, "FULL") if durable else self.relaxed
        reset_in_child(self)

    def open(self) -> apsw.Connection:
        """The connection of this process, opened at the first call. The caller holds the lock."""
        if self._db is None:
            if self._closed:
                raise StoreUnavailable(f"this broker on {self.path} is closed: connect again")
            self._db = self.connect()
            self._synchronous = ""
        return self._db

    def connect(self) -> apsw.Connection:
        """A new connection to the file."""
        db = open_file(self.path, self._busy)
        db.wal_autocheckpoint(_RELAXED_LOG_PAGES if self.durable is self.relaxed else _LOG_PAGES)
        self._file, self._log, self._look_at_log = _inode(self.path), None, 0.0
        return db

    def begin(self, transaction: Transaction) -> apsw.Connection:
        """Acquire the lock and begin a write transaction, or a read transaction if it has no sync level."""
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
            self._prepare_to_write(db, transaction)
            db.execute("BEGIN IMMEDIATE")
            self.must_be_there()
        except apsw.Error as error:
            self.lock.release()
            raise translated(error, self.path) from error
        except BaseException:
            self._leave_nothing_open()
            self.lock.release()
            raise
        return db

    def _prepare_to_write(self, db: apsw.Connection, transaction: Transaction) -> None:
        if transaction.synchronous != self._synchronous:
            self._synchronous = ""  # unknown, in case of an interrupt in the next line
            db.execute(f"PRAGMA synchronous = {transaction.synchronous}")
            self._synchronous = transaction.synchronous
        self._busy.pause = transaction.pause
        self.writes += 1

    def must_be_there(self) -> None:
        """Raise StoreUnavailable if the file or its log was removed or replaced: writes would be lost."""
        found = _inode(self.path)
        if found is None:
            raise StoreUnavailable(f"{self.path} was removed while in use: restore it, or connect again")
        if found != self._file:
            raise StoreUnavailable(f"{self.path} was replaced while in use: close this broker and connect again")
        if time.monotonic() < self._look_at_log:
            return
        self._look_at_log = time.monotonic() + _LOG_SECONDS
        if self._log is None:
            self._log = _inode(f"{self.path}-wal")
        elif self._log != _inode(f"{self.path}-wal"):
            self._look_at_log = 0.0
            raise StoreUnavailable(
                f"{self.path}-wal was removed while in use, and commits since the last checkpoint with it: "
                "close all brokers on the file, then run penstock check"
            )

    def _leave_nothing_open(self) -> None:
        """Roll back a transaction that no thread continues (interrupt, missing file): it would lock out all others."""
        if self._db is not None and self._shared is None and self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _queue_up(self, transaction: Transaction) -> None:
        """Wait for the lock. A write is listed in the queue, so that the holder of the lock knows that it waits."""
        if not transaction.synchronous:
            self.lock.acquire()
            return
        self._queue.append(transaction.pause)
        try:
            self.lock.acquire()
        finally:
            self._queue.remove(transaction.pause)

    def end(self, transaction: Transaction, failure: BaseException | None) -> None:
        """Commit, or roll back after a failure, and release the lock."""
        db = self._db
        assert db is not None
        if self._shared is not None or (self._queue and failure is None and transaction.synchronous == "FULL"):
            self._end_shared(db, failure)
            return
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

    def _end_shared(self, db: apsw.Connection, failure: BaseException | None) -> None:
        """Leave the transaction to the next waiting thread, or commit it; after a failure, undo only this step."""
        shared = self._shared
        try:
            if shared is None:
                shared = self._shared = Shared()
            else:
                try:
                    if failure is not None:
                        db.execute("ROLLBACK TO penstock")
                    db.execute("RELEASE penstock")
                except apsw.Error as error:  # errors such as a full disk end the whole transaction with all savepoints
                    self._end_all(shared, failure if isinstance(failure, apsw.Error) else error)
            shared.steps += 1
            if not self._queue or shared.steps > _MOST_STEPS:
                self._commit_shared()
        except BaseException:
            self._leave_nothing_open()
            raise
        finally:
            self.lock.release()
        if failure is None:
            failure = self._wait_for(shared)
        if isinstance(failure, apsw.Error):
            raise translated(failure, self.path) from failure

    def _wait_for(self, shared: Shared) -> apsw.Error | None:
        """Wait until the shared transaction has ended, or commit it if no thread continues it. Returns its error."""
        try:
            while not shared.over.wait(_PATIENCE):
                self._commit_left(shared)
        except BaseException:
            self._commit_left(shared)
            raise
        return shared.error

    def _commit_left(self, shared: Shared) -> None:
        with self.lock:
            if self._shared is shared:
                self._commit_shared()

    def _commit_shared(self) -> None:
        """Commit the shared transaction, if there is one. The caller holds the lock."""
        shared, db = self._shared, self._db
        if shared is None or db is None:
            return
        failure = None
        try:
            db.execute("COMMIT")
        except apsw.Error as error:
            failure = error
        finally:  # also after an interrupt, which is raised after the commit: other threads wait for its outcome
            if failure is not None or not db.in_transaction:
                self._end_all(shared, failure)

    def _end_all(self, shared: Shared, error: apsw.Error | None) -> None:
        """End the shared transaction, rolled back after an error, and wake the threads that wait for it."""
        try:
            if error is not None and self._db is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK")
        finally:
            self._shared = None
            shared.error = error
            shared.over.set()

    def at_once(self, transaction: Transaction, query: str, values: Values) -> tuple[int, ...] | None:
        """Run one statement as its own transaction. Returns its row, or None if it refused its key.

        This saves BEGIN and COMMIT: 10 of the 45 µs that a put took, not counting the disk.
        """
        if not self.lock.acquire(blocking=False):
            with transaction as db:  # other threads use the connection, and may share a commit
                return _row(db, query, values)
        try:
            db = self._db or self.open()
            if self._shared is not None:
                self._commit_shared()
            self._prepare_to_write(db, transaction)
            self.must_be_there()
            return _row(db, query, values)
        except apsw.Error as error:
            raise translated(error, self.path) from error
        finally:
            self.lock.release()

    def data_version(self) -> int:
        """A number that changes if and only if another connection has committed."""
        with self.lock:
            try:
                # Not the file control of the same name, which also changes with our own commits.
                return int(self.open().execute("PRAGMA data_version").get)
            except apsw.Error as error:
                raise translated(error, self.path) from error

    def close(self) -> None:
        """Close the connection; it cannot be opened again."""
        with self.lock:
            self._closed = True
            self._commit_shared()
            if self._db is not None:
                self._db.close()
                self._db = None

    def after_fork(self) -> None:
        """Drop the parent's connection in a forked child, which must neither use nor close it."""
        if self._db is not None:
            # Never freed, so never closed: closing would run SQLite code on the parent's locks and mutexes.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))
        self._db = None
        self.lock = threading.Lock()
        self._queue.clear()
        self._shared = None


class Transaction:
    """A context manager that begins a transaction, and commits it or rolls it back."""

    def __init__(self, connection: Connection, synchronous: str, pause: Pause = EAGER) -> None:
        self._connection = connection
        self.synchronous = synchronous
        self.pause = pause
        #: The same for steps that process more tasks the later they begin, and so let others go first.
        self.patient = self if pause is PATIENT else Transaction(connection, synchronous, PATIENT)

    def __enter__(self) -> apsw.Connection:
        return self._connection.begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.end(self, error)


class BoundConnection(Connection):
    """The caller's connection: each transaction, durable or not, is a savepoint in the caller's transaction."""

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
        self._db = connection

    def begin(self, transaction: Transaction) -> apsw.Connection:
        self._execute("SAVEPOINT penstock")
        assert self._db is not None
        return self._db

    def end(self, transaction: Transaction, failure: BaseException | None) -> None:
        if failure is not None and self._db is not None and self._db.in_transaction:
            self._execute("ROLLBACK TO penstock")
        self._execute("RELEASE penstock")
        if isinstance(failure, apsw.Error):
            raise translated(failure, self.path) from failure

    def _execute(self, statement: str) -> None:
        assert self._db is not None
        try:
            self._db.execute(statement)
        except apsw.Error as error:
            raise translated(error, self.path) from error

    def at_once(self, transaction: Transaction, query: str, values: Values) -> tuple[int, ...] | None:
        with transaction as db:
            return _row(db, query, values)

    def close(self) -> None:
        """Do nothing: the connection belongs to the caller."""

    def after_fork(self) -> None:
        """Do nothing: the connection belongs to the caller."""


def _row(db: apsw.Connection, query: str, values: Values) -> tuple[int, ...] | None:
    try:
        row: tuple[int, ...] = db.execute(query, values).get
    except apsw.MismatchError:  # the pk is not a number; SQLite undoes only this statement
        return None
    return row


def _inode(path: str) -> tuple[int, int] | None:
    """The device and inode of the file at a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
