"""Temporary tubes: unlogged; after a crash of the server they exist, empty and consistent."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import penstock
from penstock.store.postgres.postgres_connection import locate
from penstock.testing import Clock
from tests.servers.postgres import Postgres


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """A broker whose session does not lapse, however long the server takes to restart."""
    with penstock.connect(url, clock=Clock()) as broker:
        yield broker


def crash(server: Postgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CHECKPOINT")  # the test server's commits do not wait for the disk
    server.kill()
    server.start()


def fill(tube: penstock.Tube) -> None:
    """Put two ready, one taken, one delayed and one buried task, and two of a started group."""
    tube.put_many(["taken", "buried", "ready", ("delayed", {"delay": 60})])
    assert tube.take(0) is not None
    tube.bury(2)
    group = tube.group("g")
    group.put_many(["a", "b"])
    group.start()


def test_the_tasks_of_temporary_tubes_are_in_an_unlogged_table(broker: penstock.Broker, url: str) -> None:
    for name, temporary in (("lasting", False), ("passing", True)):
        broker.tube(name, temporary=temporary).put_many(["x", ("y", {"delay": 1})])
    with psycopg.connect(locate(url).conninfo) as db:
        found = db.execute(
            f"SELECT c.relpersistence, count(*) FROM {locate(url).quoted}.penstock_task k "
            "JOIN pg_class c ON c.oid = k.tableoid GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert found == [("p", 2), ("u", 2)]


def test_after_a_crash_a_temporary_tube_exists_and_is_empty(broker: penstock.Broker, server: Postgres) -> None:
    lasting, passing = broker.tube("lasting"), broker.tube("passing", "utubettl", temporary=True, capacity=10)
    for tube in (lasting, passing):
        fill(tube)
    taken = passing.tasks("t")[0]
    crash(server)
    assert broker.check() == []
    assert lasting.stats().tasks.total == 6
    stats = passing.stats()
    assert (stats.tasks.total, stats.tasks.done, stats.calls.put, stats.calls.ack) == (0, 6, 6, 0)
    assert passing.take(0) is None
    with pytest.raises(penstock.NotTaken):
        passing.ack(taken.id)
    new = passing.put_many(range(10))  # as many as its capacity
    assert new[0].id > 6
    assert [task.data for task in passing.take_many(10)] == [0]
    assert broker.check() == []


def test_a_reply_finds_a_temporary_tube_as_the_crash_left_it(broker: penstock.Broker, server: Postgres) -> None:
    """The first call after the crash goes to another tube."""
    lasting, passing = broker.tube("lasting"), broker.tube("passing", "reliable", temporary=True)
    passing.put_many(["a", "b"])
    lasting.put("asked", reply_to="passing")
    task = lasting.take(0)
    crash(server)
    assert task is not None
    task.ack()
    stats = passing.stats().tasks
    assert (stats.ready, stats.done) == (1, 2)
    assert broker.check() == []
    passing.drop()
    assert broker.check() == []
