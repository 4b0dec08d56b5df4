"""One private MariaDB for these tests, or the server that PENSTOCK_TEST_MYSQL names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeAlias

import pymysql
import pytest

import penstock
from tests.mysql.databases import bare, fresh_url
from tests.servers.base import Missing
from tests.servers.mariadb import Mariadb

Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"


def start() -> Mariadb:
    """A server of its own; a missing one fails in CI and is a named skip elsewhere."""
    try:
        return Mariadb()
    except Missing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    given = os.environ.get("PENSTOCK_TEST_MYSQL")
    if given:
        yield given
        return
    server = start()
    yield server.url
    server.stop()


@pytest.fixture
def url(base_url: str) -> str:
    """An empty store."""
    return fresh_url(base_url)


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    with penstock.connect(url) as broker:
        yield broker


@pytest.fixture
def own(url: str, broker: penstock.Broker) -> Iterator[Connection]:
    """The driver's own connection to the store's database."""
    with bare(url) as connection:
        yield connection
