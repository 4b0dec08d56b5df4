"""check finds what must not exist in tubes of unleased kinds, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.mysql.conftest import Connection

# name -> what damages the database, and what is found
DAMAGE = {
    "an element out of its place": ("UPDATE penstock_task SET rank1 = 7 WHERE address = 'a'", "does not stand"),
    "a buried element": ("UPDATE penstock_task SET state = '!' WHERE address = 'a'", "state !"),
    "a taken element": ("UPDATE penstock_task SET state = 't' WHERE address = 'a'", "state t"),
    "a leased message": ("UPDATE penstock_task SET owner = 1 WHERE state = 't'", "held by session 1"),
    "a delayed message": ("UPDATE penstock_task SET state = '~' WHERE address LIKE '%-2'", "state ~"),
    "a last id that is too low": ("UPDATE penstock_id SET last_ms = 5, last_seq = 9", "the last id is kept as 5-9"),
    "a last hand-out that is too low": ("DELETE FROM penstock_serial", "kept as number 0, there is number 1"),
    "a wrong counter": ("UPDATE penstock_counter SET taken = taken + 3", "counter taken"),
    "an id of no task": ("DELETE FROM penstock_address", "address a"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, own: Connection, name: str) -> None:
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
    feeds.take(0)
    queue.put_many(["one", "two"])
    queue.take(0)
    assert broker.check() == []
    statement, found = DAMAGE[name]
    own.cursor().execute(statement)
    assert any(found in finding.what for finding in broker.check()), broker.check()
    broker.check(repair=True)
    assert broker.check() == []
    assert [task.id for task in feeds.take_many(9)] == ["b"]
    assert [task.data for task in queue.take_many(9)] == ["two"]
    assert [task.data for task in queue.recover(9, 0)] == ["one", "two"]
    newest = queue.inspect(-1, 1, pending=True)[0]
    assert queue.put("three").id > newest.id
    assert queue.ack_many([newest.id]) == [newest.id]
    assert broker.check() == []
