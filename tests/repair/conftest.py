"""Stores damaged by plain SQL: their tables have the same names on every database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import pytest

import penstock
from penstock.store.sqlite.memory import opened
from penstock.testing import Clock
from tests.conftest import STORES

# One line here adds a store to the suite.
SQL_STORES = ("memory", "sqlite", "postgres", "mariadb")

Damage = Callable[[str], None]


@pytest.fixture(params=SQL_STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store of each kind."""
    return STORES[request.param](tmp_path)


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """A broker on it with a stopped clock: no lease and no session ends while a test is slow."""
    with penstock.connect(url, clock=Clock()) as broker:
        yield broker


@pytest.fixture
def damage(url: str, broker: penstock.Broker) -> Damage:
    """Runs a statement in the broker's store."""
    return partial(_EXECUTE[urlsplit(url).scheme], url)


def _in_memory(url: str, statement: str) -> None:
    with opened[url].transaction() as db:
        db.execute(statement)


def _in_sqlite(url: str, statement: str) -> None:
    db = apsw.Connection(urlsplit(url).path)
    db.set_busy_timeout(30_000)
    db.execute(statement)
    db.close()


def _in_postgres(url: str, statement: str) -> None:
    from tests.postgres.schemas import damage

    damage(url, statement)


# Columns with other names there.
_MYSQL_WORDS = {"delayed": "`delayed`", "takes": "number", "penstock_counter SET last_ms": "penstock_id SET last_ms"}


def _in_mysql(url: str, statement: str) -> None:
    from tests.mysql.databases import bare

    for word, there in _MYSQL_WORDS.items():
        statement = re.sub(rf"\b{word}\b", there, statement)
    if "UPDATE penstock_counter" in statement:  # its counters are sums of a tube's rows: keep one per tube
        statement += " WHERE id IN (SELECT * FROM (SELECT MIN(id) FROM penstock_counter GROUP BY tube) first)"
    with bare(url) as connection:
        connection.cursor().execute(statement)


_EXECUTE = {
    "memory": _in_memory,
    "sqlite": _in_sqlite,
    "postgresql": _in_postgres,
    "mysql": _in_mysql,
    "mariadb": _in_mysql,
}
