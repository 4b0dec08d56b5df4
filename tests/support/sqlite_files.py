"""A private SQLite file, a broker on it, and another program that holds its write lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sqlite.sqlite_connection import Connection
from penstock.store.sqlite.sqlite_store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a new store file."""
    return tmp_path / "queue.db"


@pytest.fixture
def broker(path: Path) -> Iterator[penstock.Broker]:
    with penstock.connect(f"sqlite:///{path}") as broker:
        yield broker


def database_of(broker: penstock.Broker) -> SqliteStore:
    """The database of a broker."""
    store = broker.runtime.store
    assert isinstance(store, SqliteStore)
    return store


def connection_of(broker: penstock.Broker) -> Connection:
    """A broker's one connection to its file."""
    return database_of(broker)._connection


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold another program's transaction open during the block."""
    db = apsw.Connection(str(path))
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()
