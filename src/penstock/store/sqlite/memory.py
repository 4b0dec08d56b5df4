"""The store in memory: SQLite without a file, shared by the brokers of one process that use the same URL.

The lock of the only connection serializes steps. Nothing needs to be watched: all callers are in one process, and a
change wakes the blocked ones. A forked child must connect again, and gets an empty store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import apsw

from penstock.core.results import Description
from penstock.engine.store import Store
from penstock.errors import UnsupportedOption
from penstock.store.sqlite.file import parameters
from penstock.store.sqlite.sqlite_connection import Connection
from penstock.store.sqlite.sqlite_store import SqliteStore, migrate, wall_clock


class MemoryConnection(Connection):
    """A connection to a database in memory, which all stores of a URL share; closing the last of them deletes it."""

    def __init__(self, url: str, clock: Callable[[], int]) -> None:
        super().__init__(url, durable=False)
        self.clock = clock
        self.stores = set[MemoryStore]()
        migrate(self)

    def connect(self) -> apsw.Connection:
        db = apsw.Connection(":memory:")
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # as in `open_file`
        return db

    def must_be_there(self) -> None:
        """Do nothing: there is no file that could be replaced."""

    def after_fork(self) -> None:
        super().after_fork()
        self._closed = True


class MemoryStore(SqliteStore):
    """The store of one broker."""

    shared = False

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__(connection, connection.path, connection.clock, None)
        self._stores = connection.stores
        self._stores.add(self)

    def bind(self, connection: object) -> SqliteStore:
        raise UnsupportedOption("memory:// has no transactions to bind to: sqlite:// has")

    def describe(self) -> Description:
        promise = "nothing outlives the last broker of this process"
        return Description("memory", "", self.identity, promise, None, [])

    def close(self) -> None:
        with _lock:
            self._stores.discard(self)
            if self._stores:
                return
            if opened.get(self.identity) is self._connection:
                del opened[self.identity]
        super().close()


#: The connections of this process, by URL.
opened: dict[str, MemoryConnection] = {}
_lock = threading.Lock()


def _forget_in_child() -> None:
    """Forget the parent's connections in a forked child."""
    global _lock
    _lock = threading.Lock()
    opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def open_memory(url: str, clock: Callable[[], int] | None = None) -> Store:
    """Open the store of a URL in this process. The first caller's clock applies to all."""
    parameters(url)
    with _lock:
        if url not in opened:
            opened[url] = MemoryConnection(url, clock or wall_clock)
        return MemoryStore(opened[url])
