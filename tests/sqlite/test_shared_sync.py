"""Durable steps of several threads share a sync of the log, and each still fails or succeeds alone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sqlite import sqlite_connection
from penstock.store.sqlite.sqlite_connection import Connection
from tests.support.sqlite_files import connection_of, held
from tests.support.threads import begin, until


class Disk:
    """Syncs a file when a test permits it. Counts the syncs."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.permit = threading.Event()
        self.permit.set()
        self.error: OSError | None = None

    def sync(self, descriptor: int) -> None:
        self.begun += 1
        assert self.permit.wait(60)
        if self.error is not None:
            raise self.error
        os.fsync(descriptor)
        self.ended += 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(sqlite_connection, "_sync_file", disk.sync)
    return disk


@pytest.fixture
def tube(broker: penstock.Broker) -> penstock.Tube:
    return broker.tube("mail")


def stored(path: Path) -> list[int]:
    other = apsw.Connection(str(path))
    try:
        return [pk & (1 << 40) - 1 for (pk,) in other.execute("SELECT pk FROM penstock_task ORDER BY pk")]
    finally:
        other.close()


def put_while_syncing(disk: Disk, path: Path, puts: list[Callable[[], object]]) -> list[Future[object]]:
    """Begin one put and, while its sync runs, the others; the sync runs on when all have committed."""
    disk.permit.clear()
    began = disk.begun
    futures = [begin(puts[0])]
    until(lambda: disk.begun == began + 1)
    futures += [begin(put) for put in puts[1:]]
    until(lambda: len(stored(path)) == len(puts))
    disk.permit.set()
    return futures


def test_puts_that_commit_during_a_sync_share_the_next_one(disk: Disk, path: Path, tube: penstock.Tube) -> None:
    before = disk.ended
    puts = [lambda: tube.put("plain").id, *[lambda: tube.put("x", delay=9).id] * 5]
    assert sorted(put.result(30) for put in put_while_syncing(disk, path, puts)) == [1, 2, 3, 4, 5, 6]  # type: ignore[type-var]
    assert disk.ended == before + 2


def test_a_put_returns_only_after_a_sync_that_began_after_its_commit(
    disk: Disk, path: Path, tube: penstock.Tube
) -> None:
    disk.permit.clear()
    first = begin(lambda: tube.put("x"))
    until(lambda: stored(path) == [1])
    second = begin(lambda: tube.put("y"))
    until(lambda: stored(path) == [1, 2])
    assert not first.done() | second.done()
    disk.permit.set()
    assert [first.result(30).id, second.result(30).id] == [1, 2]
    assert disk.ended >= 2


def test_others_read_and_write_during_a_sync(
    disk: Disk, path: Path, broker: penstock.Broker, tube: penstock.Tube
) -> None:
    passing = broker.tube("passing", temporary=True)
    disk.permit.clear()
    first = begin(lambda: tube.put("x"))
    until(lambda: disk.begun > 0 and stored(path) == [1])
    assert tube.peek(1).data == "x"
    assert passing.put("y").id == 1
    disk.permit.set()
    first.result(30)


def test_a_step_that_writes_nothing_syncs_nothing(disk: Disk, tube: penstock.Tube) -> None:
    tube.take(0)
    before = disk.begun
    assert tube.take(0) is None
    assert tube.kick() == 0
    assert disk.begun == before


def test_one_that_is_refused_takes_nothing_from_the_others(
    path: Path, broker: penstock.Broker, tube: penstock.Tube
) -> None:
    connection = connection_of(broker)
    with held(path):
        futures = [begin(lambda: tube.put("x", address="a").id)]
        until(connection.lock.locked)
        futures += [begin(lambda: tube.put("x", address="a").id) for _ in range(3)]
        futures += [begin(lambda: tube.put_many(["y", "z"])[1].id) for _ in range(2)]
    refused = [type(error) for future in futures if (error := future.exception(30)) is not None]
    assert refused == [penstock.DuplicateAddress] * 3
    assert [task.id for task in tube.tasks()] == [1, 2, 3, 4, 5]


def test_a_failed_commit_raises_and_stores_nothing(broker: penstock.Broker, tube: penstock.Tube) -> None:
    db = connection_of(broker).open()
    db.set_commit_hook(lambda: True)
    with pytest.raises(penstock.StoreError):
        tube.put_many(["x", "y"])
    db.set_commit_hook(None)
    assert tube.tasks() == []
    assert tube.put("y").id == 1


def test_a_full_disk_takes_nothing_from_earlier_puts(broker: penstock.Broker, tube: penstock.Tube) -> None:
    db = connection_of(broker).open()
    db.pragma("max_page_count", db.pragma("page_count") + 20)
    tube.put_many(["x", "x"])
    with pytest.raises(penstock.StoreFull):
        tube.put_many(["y" * 50_000] * 10)
    assert [task.id for task in tube.tasks()] == [1, 2]
    assert tube.put("after").id == 3


def test_a_failed_sync_is_an_unknown_outcome_of_each_put_that_waits_for_it(
    disk: Disk, path: Path, tube: penstock.Tube
) -> None:
    disk.error = OSError(errno.EIO, "Input/output error")
    put: Callable[[], object] = lambda: tube.put("x")  # noqa: E731
    for future in put_while_syncing(disk, path, [put] * 3):
        with pytest.raises(penstock.OutcomeUnknown, match=r"queue.db to disk failed .*Input/output"):
            future.result(30)


def test_after_a_failed_sync_nothing_is_written_until_the_file_is_opened_again(
    disk: Disk, path: Path, broker: penstock.Broker, tube: penstock.Tube
) -> None:
    """Later syncs would succeed: the kernel forgets pages that it could not write."""
    disk.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(penstock.OutcomeUnknown):
        tube.put("unknown")
    disk.error = None
    for write in (lambda: tube.put("no"), lambda: tube.put_many(["no"]), lambda: tube.take(0)):
        with pytest.raises(penstock.StoreUnavailable, match="connect again"):
            write()
    broker.close()
    with penstock.connect(f"sqlite:///{path}") as again:
        assert [task.data for task in again.tube("mail").tasks()] == ["unknown"]
        assert again.tube("mail").put("x").id == 2


@pytest.fixture
def connection(path: Path) -> Iterator[Connection]:
    connection = Connection(str(path), durable=True)
    with connection.transaction() as db:
        db.execute("CREATE TABLE penstock_task (pk)")
    yield connection
    connection.close()


def add(connection: Connection, pk: int) -> None:
    with connection.transaction() as db:
        db.execute("INSERT INTO penstock_task VALUES (?)", (pk,))


def test_closing_syncs_for_the_threads_that_wait(disk: Disk, connection: Connection, path: Path) -> None:
    disk.permit.clear()
    waiting = begin(lambda: add(connection, 1))
    until(lambda: stored(path) == [1])
    closing = begin(connection.close)
    disk.permit.set()
    waiting.result(30)
    closing.result(30)
    assert disk.ended == 1


def test_an_interrupt_during_the_commit_keeps_nobody_waiting(connection: Connection, path: Path) -> None:
    def interrupt(*_: object) -> int:  # called when the commit is done, as signals are handled
        raise KeyboardInterrupt

    connection.open().set_wal_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        add(connection, 1)
    connection.open().set_wal_hook(None)
    add(connection, 2)
    assert stored(path) == [1, 2]


def test_an_interrupt_before_the_commit_leaves_nothing_open(connection: Connection, path: Path) -> None:
    def interrupt(sql: str, duration: int) -> None:  # called when the statement is done, as signals are handled
        raise KeyboardInterrupt

    connection.open().set_profile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        add(connection, 1)
    connection.open().set_profile(None)
    add(connection, 2)
    assert stored(path) == [2]
