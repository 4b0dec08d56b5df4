"""MySQL and MariaDB as the database behind a pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

from penstock.store.mysql.mysql_connection import Link, parse
from penstock.store.mysql.mysql_store import promise
from penstock.store.mysql.server import Server
from penstock.store.mysql.wire import joined, literal
from penstock.store.sql.sql_queries import load_queries

T = TypeVar("T")
_VALUES = re.compile(r"VALUES \(%s(?:, %s)*\)")
_QUERIES = load_queries("penstock.store.mysql", "vault.sql", shared=True, base="penstock.store.pool")


class _Session:
    def __init__(self, link: Link) -> None:
        self.rows, self.change = partial(link.rows, raw=True), link.change
        self.statements: list[str] = []

    def later(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        head, *tail = _VALUES.split(sql)
        if tail:  # of an INSERT: as few statements as possible
            self.statements += [f"{head}VALUES {part}{tail[0]}" for part in joined(map(literal, rows))]
        else:
            self.statements += [sql % tuple(map(literal, row)) for row in rows]


class MysqlVault:
    """Keeps the contract of `store.pool.vault.Database` in one database."""

    def __init__(self, url: str) -> None:
        self._database = Server(parse(url))
        self.label = f"MySQL {self._database.name}"
        self.queries: SimpleNamespace = _QUERIES
        # Every byte may need two in a statement; the rest is for what stands beside the data.
        self.most_bytes = (self._database.run(lambda link: link.max_packet, safe=True) - 2**16) // 2

    def read(self, sql: str, arguments: Sequence[object]) -> list[tuple[object, ...]]:
        return self._database.run(
            lambda link: link.rows(f"{sql}; COMMIT", arguments, raw=True), safe=True, committed=True
        )

    def run(self, work: Callable[[_Session], T]) -> T:
        def transaction(link: Link) -> T:
            session = _Session(link)
            done = work(session)
            if session.statements:
                link.send(session.statements)
            else:
                link.commit()
            return done

        return self._database.run(transaction, safe=True, committed=True)

    def promise(self) -> str:
        return promise(self.read(self.queries.flush, ())[0][0])

    def close(self) -> None:
        self._database.close()
