"""broker.bind on SQLite: puts and acks are committed or rolled back with the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import apsw
import pytest

import penstock


@pytest.fixture
def own(path: Path, broker: penstock.Broker) -> Iterator[apsw.Connection]:
    """The application's connection, with its own table in the same file."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(30_000)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield connection
    connection.close()


def test_a_put_is_there_after_the_commit_and_not_before(broker: penstock.Broker, own: apsw.Connection) -> None:
    tube = broker.tube("mail")
    own.execute("BEGIN IMMEDIATE")
    own.execute("INSERT INTO orders VALUES (1)")
    task = broker.bind(own).tube("mail").put({"order": 1}, pri=3, at=datetime.fromtimestamp(0, UTC))
    with pytest.raises(penstock.NotFound):
        tube.peek(task.id)
    own.execute("COMMIT")
    taken = tube.take(0)
    assert taken is not None
    assert (taken.id, taken.pri, taken.data) == (task.id, 3, {"order": 1})
    assert broker.check() == []


def test_a_rollback_undoes_the_put(broker: penstock.Broker, own: apsw.Connection) -> None:
    tube = broker.tube("mail")
    own.execute("BEGIN IMMEDIATE")
    broker.bind(own).tube("mail").put_many(["a", "b"])
    own.execute("ROLLBACK")
    assert tube.take(0) is None
    assert tube.stats().calls.put == 0


def test_a_commit_wakes_a_blocked_taker(broker: penstock.Broker, own: apsw.Connection) -> None:
    tube = broker.tube("mail")
    got: list[penstock.Task | None] = []
    taker = Thread(target=lambda: got.append(tube.take(30)))
    taker.start()
    own.execute("BEGIN IMMEDIATE")
    broker.bind(own).tube("mail").put("hello")
    own.execute("COMMIT")
    taker.join(30)
    assert [task.data for task in got if task] == ["hello"]


def test_an_ack_is_undone_by_a_rollback(broker: penstock.Broker, own: apsw.Connection) -> None:
    tube = broker.tube("mail")
    tube.put("x")
    task = tube.take(0)
    assert task is not None
    own.execute("BEGIN IMMEDIATE")
    broker.bind(own).tube("mail").ack(task)
    own.execute("ROLLBACK")
    assert tube.peek(task.id).status is penstock.Status.TAKEN
    tube.ack(task.id)
    assert tube.stats().tasks.total == 0


def test_a_refused_put_leaves_the_rest_of_the_transaction(broker: penstock.Broker, own: apsw.Connection) -> None:
    broker.tube("mail", capacity=1)
    own.execute("BEGIN IMMEDIATE")
    own.execute("INSERT INTO orders VALUES (7)")
    bound = broker.bind(own).tube("mail")
    bound.put("fits")
    with pytest.raises(penstock.TubeFull):
        bound.put("does not")
    own.execute("COMMIT")
    assert own.execute("SELECT id FROM orders").get == 7
    assert [task.data for task in broker.tube("mail").tasks()] == ["fits"]


def test_put_refuses_a_pair_of_data_and_options(broker: penstock.Broker, own: apsw.Connection) -> None:
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(penstock.BadValue, match="tuple"):
        broker.bind(own).tube("mail").put(("x", {"pri": 1}))
    own.execute("ROLLBACK")


def test_a_tube_created_inside_is_gone_at_a_rollback(broker: penstock.Broker, own: apsw.Connection) -> None:
    own.execute("BEGIN IMMEDIATE")
    broker.bind(own).tube("fresh", "fifo").put("x")
    own.execute("ROLLBACK")
    assert broker.tubes() == []


def test_the_standard_librarys_connection_is_refused(broker: penstock.Broker) -> None:
    with pytest.raises(penstock.UnsupportedOption, match=r"apsw\.Connection"):
        broker.bind(sqlite3.Connection.__new__(sqlite3.Connection))


def test_a_connection_outside_a_transaction_is_refused(broker: penstock.Broker, own: apsw.Connection) -> None:
    with pytest.raises(penstock.BadValue, match="BEGIN IMMEDIATE"):
        broker.bind(own)


def test_a_connection_on_another_file_is_refused(broker: penstock.Broker, tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE t (x); BEGIN IMMEDIATE")
    with pytest.raises(penstock.BadValue, match="other.db"):
        broker.bind(other)
    other.close()


def test_memory_has_no_transactions() -> None:
    with penstock.connect("memory://bind") as broker, pytest.raises(penstock.UnsupportedOption, match="memory"):
        broker.bind(object())


def test_addresses_and_groups_are_part_of_the_transaction(broker: penstock.Broker, own: apsw.Connection) -> None:
    tube = broker.tube("mail")
    for end in ("ROLLBACK", "COMMIT"):
        own.execute("BEGIN IMMEDIATE")
        bound = broker.bind(own).tube("mail")
        bound.put("x", address="a", reply_to="replies")
        group = bound.group("g")
        group.put("y")
        group.on_end("end")
        group.start()
        assert group.progress() == penstock.Progress(0, 1)
        with pytest.raises(penstock.UnsupportedOption, match="commit"):
            group.wait(0)
        own.execute(end)
        assert len(tube) == (2 if end == "COMMIT" else 0)
    task = tube.take(0)
    assert task is not None
    own.execute("BEGIN IMMEDIATE")
    broker.bind(own).tube("mail").ack(task, "result")
    own.execute("COMMIT")
    assert tube.wait("a", 0).result == "result"
    assert len(broker.tube("replies")) == 1


def test_messages_and_elements_live_and_die_with_the_transaction(broker: penstock.Broker, own: apsw.Connection) -> None:
    queue, feeds = broker.tube("queue", kind="reliable"), broker.tube("feeds", kind="round", period=60)
    queue.put_many(["one", "two"])
    one, two = queue.take_many(2)
    for ending in ("ROLLBACK", "COMMIT"):
        own.execute("BEGIN IMMEDIATE")
        bound = broker.bind(own)
        three = bound.tube("queue").put("three")
        bound.tube("feeds").put_many([("a", {"id": "a"}), ("again", {"id": "a"})])
        bound.tube("queue").ack(one.id)
        assert bound.tube("queue").ack_many([one.id, two]) == [two.id]
        own.execute(ending)
        assert ("a" in feeds, three.id in queue, one.id in queue) == (
            ending == "COMMIT",
            ending == "COMMIT",
            ending == "ROLLBACK",
        )
    assert [task.data for task in queue.inspect(0, 9)] == ["three"]
    assert queue.inspect(0, 9, pending=True) == []
    assert broker.check() == []
