"""SQLite as the database behind a pool."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeVar, cast

import apsw

from penstock.store.sql.queries import load_queries
from penstock.store.sqlite.connection import Connection
from penstock.store.sqlite.describe import PROMISES

T = TypeVar("T")
# SQLite's own limit of a row, less what stands beside the data.
_MOST_BYTES = 10**9 - 10**6
_QUERIES = load_queries("penstock.store.sqlite", "vault.sql", shared=True, base="penstock.store.pool")


class _Session:
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def rows(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[object, ...]]:
        return self._db.execute(_marked(sql), cast("tuple[apsw.SQLiteValue, ...]", tuple(arguments))).fetchall()

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        self.rows(sql, arguments)
        return self._db.changes()

    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self._db.executemany(_marked(sql), cast("Sequence[tuple[apsw.SQLiteValue, ...]]", rows))


class SqliteVault:
    """Keeps the contract of `store.pool.vault.Database` in one file."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self._connection = Connection(os.path.abspath(path), durable=durable)
        self._synchronous = "FULL" if durable else "NORMAL"
        self.label = f"SQLite {self._connection.path}"
        self.queries: SimpleNamespace = _QUERIES
        self.most_bytes = _MOST_BYTES

    def read(self, sql: str, arguments: Sequence[object]) -> list[tuple[object, ...]]:
        with self._connection.reading as db:
            return _Session(db).rows(sql, arguments)

    def run(self, work: Callable[[_Session], T]) -> T:
        with self._connection.durable as db:
            return work(_Session(db))

    def promise(self) -> str:
        return PROMISES[self._synchronous]

    def close(self) -> None:
        self._connection.close()


def _marked(sql: str) -> str:
    return sql.replace("%s", "?")
