"""SQLite as the database behind a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import apsw

from penstock.store.sql.sql_queries import load_queries
from penstock.store.sqlite.file import locate
from penstock.store.sqlite.sqlite_connection import Connection
from penstock.store.sqlite.sqlite_store import PROMISES

T = TypeVar("T")


class _Session:
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[object, ...]]:
        return self._db.execute(sql.replace("%s", "?"), tuple(arguments)).fetchall()

    def change(self, sql: str, arguments: Sequence[Any] = ()) -> int:
        self.rows(sql, arguments)
        return self._db.changes()

    def later(self, sql: str, rows: Sequence[Any]) -> None:
        self._db.executemany(sql.replace("%s", "?"), rows)


class SqliteVault:
    """Keeps the contract of `store.pool.vault.Database` in one file."""

    queries: SimpleNamespace = load_queries("penstock.store.pool", fragments={
        "int": "INTEGER", "blob": "BLOB", "serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "for_update": "",
        "table_end": ") STRICT", "keyed_end": ") STRICT, WITHOUT ROWID",
    })  # fmt: skip
    # SQLite's own limit of a row, less what else is in it.
    most_bytes = 10**9 - 10**6

    def __init__(self, url: str) -> None:
        self._connection = Connection(*locate(url))
        self.label = f"SQLite {self._connection.path}"

    def read(self, sql: str, arguments: Sequence[object]) -> list[tuple[object, ...]]:
        with self._connection.reading as db:
            return _Session(db).rows(sql, arguments)

    def run(self, work: Callable[[_Session], T]) -> T:
        with self._connection.durable as db:
            return work(_Session(db))

    def promise(self) -> str:
        return PROMISES[self._connection.durable.synchronous]

    def close(self) -> None:
        self._connection.close()
