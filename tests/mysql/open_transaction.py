"""Steps that stay uncommitted, to test what other clients meet while a packet of ours is in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.store.mysql.mysql_connection import Link, MysqlServer, parse
from penstock.store.mysql.mysql_step import MysqlStep
from penstock.store.mysql.mysql_store import MysqlStore
from penstock.store.mysql.mysql_wire import Answer, Statement

T = TypeVar("T")


class HeldServer(MysqlServer):
    """Runs everything in one transaction, which `end` rolls back."""

    def __init__(self, url: str) -> None:
        super().__init__(parse(url))
        self.connection = self.pool.borrow(10)

    def send(self, statements: Sequence[Statement], *, safe: bool = False) -> Answer:
        return self.connection.send(statements, commit=False)

    def attempt(self, work: Callable[[Link], T], *, safe: bool, restart: bool = False) -> T:
        return work(self.connection)

    def end(self, *, commit: bool = False) -> None:
        """Release all locks."""
        self.connection.finish() if commit else self.connection.undone()


def held_step(url: str) -> tuple[MysqlStep, HeldServer]:
    """A step, and a function that ends its transaction."""
    server = HeldServer(url)
    return MysqlStep(MysqlStore(server, "", None, None), write=True, held=False), server
