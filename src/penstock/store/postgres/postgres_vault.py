"""PostgreSQL as the database behind a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg

from penstock.store.postgres.location import locate
from penstock.store.postgres.postgres_connection import Connections
from penstock.store.postgres.postgres_store import promise
from penstock.store.sql.sql_queries import load_queries

T = TypeVar("T")
_QUERIES = load_queries("penstock.store.postgres", "vault.sql", shared=True, base="penstock.store.pool")


class _Session:
    def __init__(self, db: psycopg.Connection) -> None:
        self._db = db
        self._later: list[tuple[str, Sequence[Sequence[object]]]] = []

    def rows(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._db.execute(sql, arguments, binary=True).fetchall()

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        return self._db.execute(sql, arguments).rowcount

    def later(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self._later.append((sql, rows))

    def send(self) -> None:
        """What was left for the commit, in one round trip."""
        if self._later:
            with self._db.pipeline(), self._db.cursor() as cursor:
                for sql, rows in self._later:
                    cursor.executemany(sql, rows)


class PostgresVault:
    """Keeps the contract of `store.pool.vault.Database` in one schema of a database."""

    # A value has 2^30 bytes at most; the server reads it from a message that is no longer, either.
    most_bytes = 2**30 - 2**20

    def __init__(self, url: str) -> None:
        location = locate(url)
        self._connections = Connections(location)
        self.label = location.place
        texts = {name: sql.replace("{schema}", location.quoted) for name, sql in vars(_QUERIES).items()}
        placed = f"{location.quoted}.penstock_pool_"
        self.queries = SimpleNamespace(**{name: sql.replace("penstock_pool_", placed) for name, sql in texts.items()})

    def read(self, sql: str, arguments: Sequence[object]) -> list[tuple[Any, ...]]:
        return self._connections.attempt(lambda db: _Session(db).rows(sql, arguments), twice=True)

    def run(self, work: Callable[[_Session], T]) -> T:
        def transaction(db: psycopg.Connection) -> T:
            session = _Session(db)
            done = work(session)
            session.send()
            return done

        return self._connections.transact(transaction)

    def promise(self) -> str:
        return promise(*self.read(self.queries.durability, ())[0])

    def close(self) -> None:
        self._connections.close()
