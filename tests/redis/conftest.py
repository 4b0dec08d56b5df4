"""Private Redis servers for what only this store does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.servers.redis import Redis, RedisCluster


@pytest.fixture(scope="package")
def server() -> Iterator[Redis]:
    """One server for all these tests, each with a prefix of its own."""
    redis = Redis()
    yield redis
    redis.stop()


@pytest.fixture
def own_server() -> Iterator[Redis]:
    """A server that a test may kill, fill and misconfigure."""
    redis = Redis()
    yield redis
    redis.stop()


@pytest.fixture(scope="package")
def cluster() -> Iterator[RedisCluster]:
    """Three nodes."""
    redis = RedisCluster()
    yield redis
    redis.stop()


@pytest.fixture
def url(server: Redis) -> str:
    """A store that nobody used before."""
    return server.fresh_url()


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """A broker on it, in real time."""
    with penstock.connect(url) as broker:
        yield broker
