"""MySQL and MariaDB as the database behind a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeVar

from penstock.store.mysql.connection import Link
from penstock.store.mysql.database import promise
from penstock.store.mysql.location import parse
from penstock.store.mysql.server import Server
from penstock.store.sql.queries import load_queries

T = TypeVar("T")
_QUERIES = load_queries("penstock.store.mysql", "vault.sql", shared=True, base="penstock.store.pool")


class MysqlVault:
    """Keeps the contract of `store.pool.vault.Database` in one database."""

    def __init__(self, url: str) -> None:
        self._database = Server(parse(url))
        self.label = f"MySQL {self._database.name}"
        self.queries: SimpleNamespace = _QUERIES
        # Every byte may need two in a statement; the rest is for what stands beside the data.
        self.most_bytes = (self.run(lambda link: link.max_packet) - 2**16) // 2

    def read(self, sql: str, arguments: Sequence[object]) -> list[tuple[object, ...]]:
        return self._database.run(lambda link: link.read(sql, arguments), safe=True, committed=True)

    def run(self, work: Callable[[Link], T]) -> T:
        return self._database.run(work, safe=True)

    def promise(self) -> str:
        return promise(self.read(self.queries.flush, ())[0][0])

    def close(self) -> None:
        self._database.close()
