"""One private MariaDB for these tests, or the server that PENSTOCK_TEST_MYSQL names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeAlias

import pymysql
import pytest

import penstock
from penstock.store.mysql import mysql_connection as connection
from tests.mysql.databases import bare, fresh_url
from tests.servers import started
from tests.servers.fixtures import broker as broker
from tests.servers.mariadb import Mariadb

Connection: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    given = os.environ.get("PENSTOCK_TEST_MYSQL")
    if given:
        yield given
        return
    with started(Mariadb) as server:
        yield server.url


@pytest.fixture
def url(base_url: str) -> str:
    """An empty store."""
    return fresh_url(base_url)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For brokers opened later: a step that waits for a row lock is not retried while the test is slow."""
    short = f"innodb_lock_wait_timeout = {connection.LOCK_WAIT_SECONDS}"
    assert short in connection._SETTINGS
    monkeypatch.setattr(connection, "_SETTINGS", connection._SETTINGS.replace(short, "innodb_lock_wait_timeout = 100"))


@pytest.fixture
def own(url: str, broker: penstock.Broker) -> Iterator[Connection]:
    """A connection of the bare driver to the store's database."""
    with bare(url) as connection:
        yield connection
