"""A PostgreSQL of these tests' own, because they restart it, and brokers on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import penstock
from tests.servers.base import Missing
from tests.servers.postgres import Postgres


@pytest.fixture(scope="package")
def server() -> Iterator[Postgres]:
    """A running server; without the program the tests fail in CI and are skipped elsewhere."""
    try:
        server = Postgres()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def url(server: Postgres) -> str:
    """A store that nobody used before."""
    return server.fresh_url()


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """A broker in real time."""
    with penstock.connect(url) as broker:
        yield broker
