"""Private Redis servers for what only this store does."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.runtime.wait_queue import Waiter
from tests.servers import started
from tests.servers.fixtures import broker as broker
from tests.servers.fixtures import url as url
from tests.servers.redis import Redis, RedisCluster


@pytest.fixture(scope="package")
def server() -> Iterator[Redis]:
    """One server for all these tests, each with its own prefix."""
    with started(Redis) as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Redis]:
    """A server that a test may kill, fill and misconfigure."""
    with started(Redis) as server:
        yield server


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a call of this process sleeps: it has been answered, and the store counts it as waiting."""
    sleeping, sleep = threading.Event(), Waiter.sleep

    def noted(waiter: Waiter, seconds: float | None) -> bool:
        sleeping.set()
        return sleep(waiter, seconds)

    monkeypatch.setattr(Waiter, "sleep", noted)
    return sleeping


@pytest.fixture(scope="package")
def cluster() -> Iterator[RedisCluster]:
    """Three nodes."""
    with started(RedisCluster) as cluster:
        yield cluster
