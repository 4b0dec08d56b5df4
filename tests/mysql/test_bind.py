"""broker.bind on MySQL: puts and acks are committed or rolled back with the caller's transaction."""

from __future__ import annotations

from contextlib import suppress

import pytest

import penstock
from penstock.app.current import CurrentTask
from penstock.core.task import record_of
from penstock.store.mysql.mysql_store import MIGRATIONS
from tests.mysql.conftest import Connection
from tests.support.verbs import drain, take


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("kind", ["fifottl", "utube"])
def test_puts_and_acks_come_with_the_commit(
    broker: penstock.Broker, own: Connection, kind: str, isolation: str
) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("old")
    own.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    own.begin()
    own.cursor().execute("SELECT COUNT(*) FROM penstock_task")  # a snapshot from before the take
    held = take(tube)
    bound = broker.bind(own).tube("t")
    bound.put("one")
    bound.put_many(["two", "three"])
    bound.ack(held)
    assert [task.data for task in tube.tasks()] == ["old"]
    own.commit()
    assert [task.data for task in tube.tasks()] == ["one", "two", "three"]
    assert tube.stats().calls.ack == 1
    assert broker.check() == []


def test_a_rollback_undoes_puts_and_acks(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t")
    tube.put("old")
    held = take(tube)
    own.begin()
    bound = broker.bind(own).tube("t")
    bound.put("new")
    bound.ack(held.id)
    own.rollback()
    held.ack()
    assert tube.put("next").id == 2
    assert tube.stats().tasks.total == 1


def test_a_closed_connection_is_reported(broker: penstock.Broker, own: Connection) -> None:
    broker.tube("t")
    own.begin()
    bound = broker.bind(own).tube("t")
    own.close()
    with pytest.raises(penstock.StoreUnavailable, match=r"\(the connection is closed\)"):
        bound.put("x")
    own.connect()  # so that the fixture can close it


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("kind", ["fifottl", "utube"])
def test_addresses_replies_and_groups_come_with_the_commit(
    broker: penstock.Broker, own: Connection, kind: str, isolation: str
) -> None:
    tube = broker.tube("t", kind=kind)
    own.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    own.begin()
    own.cursor().execute("SELECT COUNT(*) FROM penstock_task")  # a snapshot from before all of it
    tube.put("held", address="a", reply_to="replies")
    held = take(tube)
    tube.group("g").put("member")
    bound = broker.bind(own).tube("t")
    with pytest.raises(penstock.DuplicateAddress):
        bound.put("twice", address="a")
    bound.ack(held, "result")
    bound.put("new", address="a", on_duplicate="ignore")
    group = bound.group("g")
    group.on_end("end")
    group.put("another")
    group.start()
    assert [task.data for task in tube.tasks()] == ["held", "member"]
    own.commit()
    assert drain(broker.tube("replies")) == [{"id": 1, "address": "a", "status": "done", "result": "result"}]
    assert sorted(map(str, drain(tube))) == ["another", "end", "member", "new"]
    assert broker.check() == []


def test_a_rollback_undoes_groups_and_addresses(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t")
    tube.put("held", address="a", group="g")
    own.begin()
    bound = broker.bind(own).tube("t")
    bound.put("new", address="b")
    bound.group("g").cancel()
    own.rollback()
    assert tube.put("other", address="b").id == 2
    tube.group("g").start()
    assert drain(tube) == ["held", "other"]
    assert broker.check() == []


def test_what_cannot_be_bound_is_refused(broker: penstock.Broker, own: Connection) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="pymysql"):
        broker.bind(object())
    with pytest.raises(penstock.BadValue, match="no transaction"):
        broker.bind(own)
    own.select_db("information_schema")
    own.begin()
    with pytest.raises(penstock.BadValue, match="another database"):
        broker.bind(own)


def test_describe_says_what_the_server_promises(broker: penstock.Broker) -> None:
    described = broker.runtime.store.describe()
    assert described.store in ("MariaDB", "MySQL")
    assert "innodb_flush_log_at_trx_commit" in described.durability
    assert described.schema == MIGRATIONS[-1].number


def test_the_rows_puts_and_ack_of_a_task_are_one_commit(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t")
    tube.put_many(["one", "two"], ttr=60)
    own.cursor().execute("CREATE TABLE rows_of_mine (number INTEGER)")
    for fails in (True, False):
        task = take(tube)
        current = CurrentTask(record_of(task), tube, task.data)
        with suppress(ValueError), current.transaction(own):
            own.cursor().execute("INSERT INTO rows_of_mine VALUES (1)")
            broker.bind(own).tube("notes").put("x")
            if fails:
                raise ValueError
        assert current.status == ("t" if fails else "-")
    own.begin()
    cursor = own.cursor()
    cursor.execute("SELECT count(*) FROM rows_of_mine")
    assert cursor.fetchone() == (1,)
    own.rollback()
    assert ([task.data for task in tube.tasks()], len(broker.tube("notes"))) == (["one"], 1)
    cursor.execute("DROP TABLE rows_of_mine")
