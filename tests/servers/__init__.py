"""Private servers for the tests: real ones, on free ports, with their data in temporary folders."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import pytest

from tests.servers.base import Missing, Server, given
from tests.servers.mariadb import Mariadb
from tests.servers.pgbouncer import PooledPostgres
from tests.servers.postgres import DurablePostgres, Postgres
from tests.servers.redis import DurableRedis, DurableRedisCluster, Redis, RedisCluster

T = TypeVar("T")
S = TypeVar("S", bound=Server)

SERVERS: dict[str, type[Server]] = {
    "postgres": PooledPostgres if given("pgbouncer") else Postgres,
    "mariadb": Mariadb,
    "redis": Redis,
    "redis-cluster": RedisCluster,
}
# Servers that may be killed: what they answered is stored when they are started again.
DURABLE: dict[str, type[Server]] = {
    "postgres": DurablePostgres,
    "mariadb": Mariadb,
    "redis": DurableRedis,
    "redis-cluster": DurableRedisCluster,
}


def fresh_url(name: str) -> str:
    """The URL of a new store on the server of that name, which is started at first use."""
    return running(name).fresh_url()


def empty_url(name: str) -> str:
    """Like fresh_url, for tests that use one store at a time: it may be an earlier test's store, emptied."""
    return running(name).empty_url()


def present(make: Callable[[], T]) -> T:
    """Return what the function makes; if a program is missing, skip by name, or fail in CI."""
    try:
        return make()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@contextmanager
def started(make: Callable[[], S]) -> Iterator[S]:
    """A private server, to kill, fill and misconfigure."""
    server = present(make)
    try:
        yield server
    finally:
        server.stop()


@cache
def running(name: str) -> Server:
    """The server of that name, started at first use and stopped at the end."""
    server = present(SERVERS[name])
    atexit.register(_stop, server, os.getpid())
    return server


def _stop(server: Server, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        server.stop()
