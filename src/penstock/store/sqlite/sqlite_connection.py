"""One connection to the file, its transactions, when they are on disk, and its state after a fork.

All threads of a broker share the connection: SQLite has one writer at a time anyway, and a lock in the process is
cheaper than waiting for SQLite's.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from penstock.core.names import kind_of
from penstock.errors import BadValue, OutcomeUnknown, StoreUnavailable, UnsupportedOption
from penstock.store.sqlite.file import EAGER, BusyHandler, Pause, open_file, translated
from penstock.system.forks import reset_in_child

# A checkpoint copies the log into the file once the log has this many pages. If each commit is synced, that is SQLite's
# default: syncing a log that still grows took 300 µs instead of 180. Else it is 8 MiB, so that a page that every step
# writes is copied once for many steps: a take and ack of micro-queues cost a tenth less processor time.
_LOG_PAGES, _RELAXED_LOG_PAGES = 1000, 4000
# Seconds between two checks that the log still exists: right after a write, one takes 40 µs, a quarter of a put.
_LOG_SECONDS = 0.1
_sync_file = getattr(os, "fdatasync", os.fsync)

Values = tuple[Any, ...]


class Connection:
    """Transactions on one file. One that only reads sees a snapshot of the file and waits for no other process.

    A durable transaction commits without a sync and releases the lock; then its thread waits for a sync of the log that
    began after its commit. One sync serves all threads that committed before it. A power cut may undo the last
    transactions that were not synced, but nothing else.
    """

    def __init__(self, path: str, durable: bool) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._db: apsw.Connection | None = None
        self._file: tuple[int, int] | None = None  # the inodes of the file and its log
        self._log: tuple[int, int] | None = None
        self._log_path = ""
        self._look_at_log = 0.0
        self._closed = False
        self._busy = BusyHandler()
        self._written = self._synced = 0  # the rows changed up to the last commit, and up to the last one on disk
        self._syncing = threading.Lock()
        self._log_fd: int | None = None
        self._damage: OSError | None = None  # why a sync failed
        self.synced = durable  # whether a durable transaction waits for the disk
        reset_in_child(self)

    def open(self) -> apsw.Connection:
        """The connection of this process, opened at the first call. The caller holds the lock."""
        if self._db is None:
            if self._closed:
                raise StoreUnavailable(f"this broker on {self.path} is closed: connect again")
            self._db = self.connect()
        return self._db

    def connect(self) -> apsw.Connection:
        """A new connection to the file."""
        db = open_file(self.path, self._busy)
        db.wal_autocheckpoint(_LOG_PAGES if self.synced else _RELAXED_LOG_PAGES)
        self._log_path = f"{os.path.realpath(self.path)}-wal"  # follow links: the log is next to the real file
        self._file, self._log = _inode(self.path), _inode(self._log_path)
        self._written = self._synced = 0
        if self.synced:
            self._log_fd = os.open(self._log_path, os.O_RDWR)
        return db

    def begin(self, pause: Pause | None) -> apsw.Connection:
        """Acquire the lock and begin a transaction, which only reads if `pause` is None."""
        self.lock.acquire()
        try:
            db = self._db or self.open()
            if pause is None:
                db.execute("BEGIN")
                return db
            self._busy.pause = pause
            db.execute("BEGIN IMMEDIATE")
            self.must_be_there()
        except BaseException as error:
            self._release()
            if isinstance(error, apsw.Error):
                raise translated(error, self.path) from error
            raise
        return db

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[apsw.Connection]:
        """Run the block as one transaction, which is on disk when the block has ended, if it writes and is durable."""
        db = self.begin(EAGER if write else None)
        try:
            yield db
        except BaseException as error:
            self.end(error, synced=False)
            raise
        self.end(None, synced=write and self.synced)

    def must_be_there(self) -> None:
        """Raise StoreUnavailable if the file or its log was removed or replaced: writes would be lost."""
        if (found := _inode(self.path)) != self._file:
            if found is None:
                raise StoreUnavailable(f"{self.path} was removed while in use: restore it, or connect again")
            raise StoreUnavailable(f"{self.path} was replaced while in use: close this broker and connect again")
        if self._damage is not None:
            raise StoreUnavailable(f"{self._not_synced()}: check the disk, close this broker and connect again")
        if time.monotonic() >= self._look_at_log:
            if _inode(self._log_path) != self._log:
                raise StoreUnavailable(
                    f"{self.path}-wal was removed while in use, and commits since the last checkpoint with it: "
                    "close all brokers on the file, then run penstock check"
                )
            self._look_at_log = time.monotonic() + _LOG_SECONDS

    def end(self, failure: BaseException | None, *, synced: bool) -> None:
        """Commit, or roll back after a failure, and release the lock. With `synced`, returns once it is on disk."""
        db = self._db
        assert db is not None
        written = 0
        try:
            if failure is None:
                db.execute("COMMIT")
                written = self._written = db.total_changes()
        except apsw.Error as error:
            failure = error
        finally:
            self._release()
        if failure is None:
            if synced:
                self._sync(written)
        elif isinstance(failure, apsw.Error):
            raise translated(failure, self.path) from failure

    def _release(self) -> None:
        """Roll back a transaction that is still open, and release the lock."""
        try:
            if self._db is not None and self._db.in_transaction:
                self._db.execute("ROLLBACK")
        finally:
            self.lock.release()

    def _sync(self, written: int) -> None:
        """Return once these changes are on disk."""
        if self._synced >= written:  # nothing was written, or another thread has synced it
            return
        with self._syncing:
            if self._synced >= written:
                return
            if self._damage is None:
                latest = self._written
                assert self._log_fd is not None
                try:
                    _sync_file(self._log_fd)
                    self._synced = latest
                    return
                except OSError as error:
                    self._damage = error  # for ever: after an error, the kernel reports the same pages as written
            raise OutcomeUnknown(f"{self._not_synced()}: it may or may not be stored") from self._damage

    def _not_synced(self) -> str:
        return f"writing the log of {self.path} to disk failed ({self._damage})"

    def at_once(self, query: str, values: Values, *, synced: bool) -> tuple[int, ...] | None:
        """Run one statement as its own transaction. Returns its row, or None if it refused its key.

        This saves BEGIN and COMMIT: 10 of the 45 µs that a put took, not counting the disk.
        """
        with self.lock:
            try:
                db = self._db or self.open()
                self._busy.pause = EAGER
                self.must_be_there()
                row = _row(db, query, values)
            except apsw.Error as error:
                raise translated(error, self.path) from error
            written = self._written = db.total_changes()
        if synced:
            self._sync(written)
        return row

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
            if self._db is not None:
                if self._log_fd is not None:
                    with suppress(OutcomeUnknown):  # the threads that wait for this sync report it
                        self._sync(self._written)
                self._close_log()
                self._db.close()
                self._db = None

    def _close_log(self) -> None:
        if self._log_fd is not None:
            os.close(self._log_fd)
        self._log_fd = None

    def after_fork(self) -> None:
        """Drop the parent's connection in a forked child, which must neither use nor close it."""
        if self._db is not None:
            # Never freed, so never closed: closing would run SQLite code on the parent's locks and mutexes.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))
        self._db = None
        self._close_log()
        self.lock, self._syncing = threading.Lock(), threading.Lock()


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

    def begin(self, pause: Pause | None) -> apsw.Connection:
        self._execute("SAVEPOINT penstock")
        assert self._db is not None
        return self._db

    def end(self, failure: BaseException | None, *, synced: bool) -> None:
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

    def at_once(self, query: str, values: Values, *, synced: bool) -> tuple[int, ...] | None:
        with self.transaction() as db:
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
