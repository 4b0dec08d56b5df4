"""A Redis of its own, because these tests flush and kill it, and pools on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from tests.servers import fresh_url, running
from tests.servers.base import Missing
from tests.servers.mariadb import Mariadb
from tests.servers.redis import Redis

Connect = Callable[[], penstock.Broker]


@pytest.fixture(scope="session")
def server() -> Iterator[Redis]:
    running("redis")  # a skip where there is none
    try:
        server = Redis()
    except Missing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def mariadb() -> Mariadb:
    server = running("mariadb")
    assert isinstance(server, Mariadb)
    return server


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URL of the database behind."""
    return f"sqlite:///{tmp_path}/pool.db?durability=relaxed"


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def any_database(request: pytest.FixtureRequest) -> str:
    """The same on each sort of database."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("database"))
    if request.param == "postgres":
        return fresh_url("postgres")
    server = request.getfixturevalue("mariadb")
    assert isinstance(server, Mariadb)
    return server.bare_url()


@pytest.fixture
def front(server: Redis) -> str:
    """The URL of a Redis that nobody used before."""
    return server.fresh_url()


@pytest.fixture
def connect(front: str, database: str) -> Iterator[Connect]:
    """Opens brokers on one pool, which are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(penstock.connect(front, pool=database))


@pytest.fixture
def broker(connect: Connect) -> Iterator[penstock.Broker]:
    """A broker on a pool; afterwards everything that is stored must still fit together."""
    broker = connect()
    yield broker
    assert broker.check() == []
