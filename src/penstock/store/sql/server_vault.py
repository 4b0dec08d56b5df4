"""A SQL server as the database of a pool. Its connections have `vault_rows`, `change` and `finish_with`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.store.sql.server import Server

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


class _Session:
    def __init__(self, link: Any) -> None:
        self.rows, self.change = link.vault_rows, link.change
        self.guard: tuple[str, Sequence[object]] | None = None
        self.writes: list[tuple[str, Sequence[Sequence[object]]]] = []

    def later(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self.writes.append((sql, rows))

    def must_change(self, sql: str, arguments: Sequence[object]) -> None:
        self.guard = sql, arguments


class ServerVault:
    """Implements `store.pool.vault.Database`, except for `queries` and `promise`."""

    def __init__(self, server: Server[Any], label: str, most_bytes: int) -> None:
        self._server = server
        self.label, self.most_bytes = label, most_bytes
        self.close = server.close

    def read(self, sql: str, arguments: Sequence[object] = ()) -> Rows:
        return self._server.attempt(lambda link: link.vault_rows(sql, arguments, alone=True), safe=True)

    def run(self, work: Callable[[_Session], T], *, restart: bool = True) -> T:
        def transaction(link: Any) -> T:
            session = _Session(link)
            done = work(session)
            link.finish_with(session.writes, session.guard)
            return done

        return self._server.attempt(transaction, safe=True, restart=restart)
