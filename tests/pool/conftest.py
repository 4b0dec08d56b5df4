"""A private Redis, because these tests flush and kill it, and pools on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import penstock
from tests.servers import running, started
from tests.servers.mariadb import Mariadb
from tests.servers.redis import Redis
from tests.servers.vaults import empty_vault

# For tests on each kind of database: a parameter of `databases`.
DATABASES = ("sqlite", "postgres", "mariadb")
Connect = Callable[[], penstock.Broker]


@pytest.fixture(scope="session")
def server() -> Iterator[Redis]:
    with started(Redis) as server:
        yield server


@pytest.fixture
def mariadb() -> Mariadb:
    server = running("mariadb")
    assert isinstance(server, Mariadb)
    return server


@pytest.fixture
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Returns the URL of an empty vault database at every call; SQLite unless a test names another."""
    name = getattr(request, "param", "sqlite")
    numbers = count()
    if name == "sqlite":
        return lambda: f"sqlite:///{tmp_path}/pool{next(numbers)}.db?durability=relaxed"
    return lambda: empty_vault(name)


@pytest.fixture
def database(databases: Callable[[], str]) -> str:
    """The URL of one of them."""
    return databases()


@pytest.fixture
def front(server: Redis) -> str:
    """The URL of an unused Redis."""
    return server.fresh_url()


@pytest.fixture
def connect(front: str, database: str) -> Iterator[Connect]:
    """Opens brokers on one pool and closes them after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(penstock.connect(front, pool=database))


@pytest.fixture
def broker(connect: Connect) -> Iterator[penstock.Broker]:
    """A broker on a pool; after the test, everything stored must be consistent."""
    broker = connect()
    yield broker
    assert broker.check() == []
