"""The store in memory: SQLite without a file, shared by the brokers of one process that use the same URL.

Steps are ordered by the lock of its only connection. Nothing is watched: a caller that changes something wakes those
who wait, in the same process. A forked child must connect again, and finds an empty store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

from penstock.core.results import Description
from penstock.engine.store import Store
from penstock.errors import StoreUnavailable, UnsupportedOption
from penstock.store.forks import reset_in_child
from penstock.store.sqlite.file import parameters
from penstock.store.sqlite.sqlite_connection import Connection
from penstock.store.sqlite.sqlite_store import SqliteStore, migrate, wall_clock


class MemoryConnection(Connection):
    """A connection to no file, for all openers of a URL. What is stored is gone when the last of them closes it."""

    def __init__(self, url: str, clock: Callable[[], int]) -> None:
        super().__init__(url, durable=False)
        self.clock = clock
        self.openers = 0
        migrate(self)

    def open(self) -> apsw.Connection:
        if self._db is None:
            if self._closed:
                raise StoreUnavailable(f"this broker on {self.path} is closed: connect again")
            self._db = apsw.Connection(":memory:")
            self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # as in `open_file`
        return self._db

    def must_be_there(self) -> None:
        """No file can be replaced."""

    def close(self) -> None:
        with _stores.lock:
            self.openers -= 1
            if self.openers > 0:
                return
            if opened.get(self.path) is self:
                del opened[self.path]
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self._closed = True


class MemoryStore(SqliteStore):
    """The store of one opener."""

    shared = False
    _closed = False

    def bind(self, connection: object) -> SqliteStore:
        raise UnsupportedOption("memory:// has no transactions to bind to: sqlite:// has")

    def describe(self) -> Description:
        promise = "nothing outlives the last broker of this process"
        return Description("memory", "", self.identity, promise, None, [])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            super().close()


class _Stores:
    """The open ones of this process, by URL."""

    def __init__(self) -> None:
        self.opened: dict[str, MemoryConnection] = {}
        self.lock = threading.Lock()
        reset_in_child(self)

    def after_fork(self) -> None:
        """The parent's stores are not open in the child."""
        self.opened.clear()
        self.lock = threading.Lock()


_stores = _Stores()
opened = _stores.opened


def open_memory(url: str, clock: Callable[[], int] | None = None) -> Store:
    """The store of that URL in this process. Its clock is that of the first opener."""
    parameters(url)
    with _stores.lock:
        connection = opened.get(url)
        if connection is None:
            connection = opened[url] = MemoryConnection(url, clock or wall_clock)
        connection.openers += 1
    return MemoryStore(connection, url, connection.clock, None)
