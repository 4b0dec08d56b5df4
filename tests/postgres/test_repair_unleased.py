"""check finds what must not exist in tubes of unleased kinds, and repair mends it."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.store.postgres.location import locate
from tests.sqlite.test_repair_unleased import DAMAGE as COMMON

# The same statements damage both, but for what the last id and the last hand-out are kept in.
DAMAGE = {
    **COMMON,
    "a last id that is too low": ("UPDATE penstock_mark SET last_ms = 5, last_seq = 9", "the last id is kept as 5-9"),
    "no last id": ("DELETE FROM penstock_mark", "the last id is kept as 0-0"),
    "a last hand-out that is too low": (
        "SELECT setval(serials, 1, false) FROM penstock_tube WHERE name = 'queue'",
        "kept as number 0, there is number 1",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, url: str, name: str) -> None:
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
    feeds.take(0)
    queue.put_many(["one", "two"])
    queue.take(0)
    assert broker.check() == []
    statement, found = DAMAGE[name]
    with psycopg.connect(locate(url).conninfo) as db:
        db.execute(f"SET search_path = {locate(url).quoted}")
        db.execute(statement)
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


def test_what_is_wrong_with_a_task_is_told_by_its_own_id(broker: penstock.Broker, url: str) -> None:
    broker.tube("feeds", kind="round", period=1000).put("x", id="a")
    with psycopg.connect(locate(url).conninfo) as db:
        db.execute(f"UPDATE {locate(url).quoted}.penstock_task SET rank1 = 7")
    wrong = "does not stand where its last hand-out put it"
    assert broker.check() == [penstock.Finding("feeds", "a", wrong, "put it right")]
    broker.check(repair=True)
