"""Durable steps of several threads share one commit, and each still fails or succeeds alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

import penstock
from penstock.store.sqlite import sqlite_connection as sharing
from penstock.store.sqlite.file import EAGER
from penstock.store.sqlite.sqlite_connection import Connection
from tests.support.sqlite_files import connection_of, held
from tests.support.threads import begin, until

T = TypeVar("T")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make threads wait for the next one, however long a busy machine takes to run it."""
    monkeypatch.setattr(sharing, "_PATIENCE", 60.0)


def gathered(broker: penstock.Broker, path: Path, calls: list[Callable[[], T]]) -> list[Future[T]]:
    """The results of calls that are all made before the first can begin; the order of the others may differ."""
    connection = connection_of(broker)
    with ThreadPoolExecutor(len(calls)) as pool:
        with held(path):
            futures = [pool.submit(calls[0])]
            until(connection.lock.locked)
            futures += [pool.submit(call) for call in calls[1:]]
            until(lambda: len(connection._queue) == len(calls) - 1)
        return futures


def commits_of(broker: penstock.Broker, allowed: int = 2**31) -> list[None]:
    """A list that grows with every commit; commits after the limit are refused."""
    commits: list[None] = []

    def count() -> bool:
        commits.append(None)
        return len(commits) > allowed

    connection_of(broker).open().set_commit_hook(count)
    return commits


def test_puts_that_wait_for_a_commit_share_the_next_one(broker: penstock.Broker, path: Path) -> None:
    tube = broker.tube("mail")
    commits = commits_of(broker)
    put = [future.result().id for future in gathered(broker, path, [lambda: tube.put("x")] * 6)]
    assert sorted(put) == [1, 2, 3, 4, 5, 6]
    assert len(commits) == 2
    assert [task.id for task in tube.tasks()] == [1, 2, 3, 4, 5, 6]


def test_one_that_is_refused_takes_nothing_from_the_others(broker: penstock.Broker, path: Path) -> None:
    tube = broker.tube("mail")
    commits = commits_of(broker)
    named, two = lambda: [tube.put("x", address="a")], lambda: tube.put_many(["y", "z"])
    first, *others = gathered(broker, path, [named, two, named, named, two])
    refused = [type(future.exception()) for future in others if future.exception() is not None]
    assert refused == [penstock.DuplicateAddress] * 2
    assert len(commits) == 1
    kept = [task.id for future in (first, *others) if future.exception() is None for task in future.result()]
    assert sorted(kept) == [task.id for task in tube.tasks()] == [1, 2, 3, 4, 5]


def test_a_failed_commit_raises_for_all_and_stores_nothing(broker: penstock.Broker, path: Path) -> None:
    tube = broker.tube("mail")
    commits_of(broker, allowed=0)
    futures = gathered(broker, path, [lambda: tube.put_many(["x", "y"])] * 3)
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [penstock.StoreError] * 3
    assert len({id(error) for error in errors}) == 3
    connection_of(broker).open().set_commit_hook(None)
    assert tube.tasks() == []
    assert tube.put("y").id == 1


def test_a_full_disk_raises_for_earlier_puts_too(broker: penstock.Broker, path: Path) -> None:
    tube = broker.tube("mail")
    db = connection_of(broker).open()
    db.pragma("max_page_count", db.pragma("page_count") + 20)
    # Few tasks are inserted one by one: after an error, SQLite ends the whole transaction.
    calls = [lambda: tube.put_many(["x", "x"]), lambda: tube.put_many(["y" * 50_000] * 10)]
    assert [type(future.exception()) for future in gathered(broker, path, calls)] == [penstock.StoreFull] * 2
    assert tube.tasks() == []
    assert tube.put("after").id == 1


@pytest.fixture
def connection(path: Path) -> Iterator[Connection]:
    connection = Connection(str(path), durable=True)
    with connection.durable as db:
        db.execute("CREATE TABLE t (n)")
    yield connection
    connection.close()


def add(connection: Connection, n: int) -> None:
    with connection.durable as db:
        db.execute("INSERT INTO t VALUES (?)", (n,))


def stored(path: Path) -> list[int]:
    other = apsw.Connection(str(path))
    try:
        return [n for (n,) in other.execute("SELECT n FROM t")]
    finally:
        other.close()


def test_a_shared_transaction_that_nobody_joins_is_committed(
    connection: Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_PATIENCE", 0.1)
    connection._queue.append(EAGER)  # as if one were expected that never comes
    add(connection, 1)
    assert stored(path) == [1]


def test_a_reader_sees_what_is_committed_and_commits_what_is_shared(connection: Connection, path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        connection._queue.append(EAGER)
        future = pool.submit(add, connection, 1)
        until(lambda: connection._shared is not None or future.done())
        with connection.reading as db:
            seen = [n for (n,) in db.execute("SELECT n FROM t")]
        assert seen == stored(path) == [1]
        future.result()


def test_closing_commits_what_is_shared(connection: Connection, path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        connection._queue.append(EAGER)
        future = pool.submit(add, connection, 1)
        until(lambda: connection._shared is not None or future.done())
        connection.close()
        future.result()
    assert stored(path) == [1]


def test_an_interrupt_during_the_commit_keeps_nobody_waiting(connection: Connection, path: Path) -> None:
    connection._queue.append(EAGER)
    waiting = begin(lambda: add(connection, 1))
    until(lambda: connection._shared is not None)

    def interrupt(*_: object) -> int:  # called when the commit is done, as signals are handled
        raise KeyboardInterrupt

    connection.open().set_wal_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), connection.reading:
        pass
    waiting.result(30)
    assert stored(path) == [1]
    connection.open().set_wal_hook(None)
    connection._queue.clear()
    add(connection, 2)
    assert stored(path) == [1, 2]


def test_an_interrupt_before_it_is_shared_leaves_nothing_open(
    connection: Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    connection._queue.append(EAGER)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("penstock.store.sqlite.sqlite_connection.Shared", interrupt)
        add(connection, 1)
    connection._queue.clear()
    add(connection, 2)
    assert stored(path) == [2]


def test_an_interrupt_between_relaxed_and_durable_makes_nothing_relaxed(connection: Connection, path: Path) -> None:
    def interrupt(sql: str, duration: int) -> None:  # called when the statement is done, as signals are handled
        if sql.endswith("NORMAL"):
            raise KeyboardInterrupt

    connection.open().set_profile(interrupt)
    with pytest.raises(KeyboardInterrupt), connection.relaxed:
        pass
    with connection.durable as db:
        assert db.pragma("synchronous") == 2
