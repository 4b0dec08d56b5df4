"""check finds what must not exist in tubes of unleased kinds, and repair mends it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock

# name -> what damages the file, and what is found
DAMAGE = {
    "an element out of its place": ("UPDATE penstock_task SET rank1 = 7 WHERE address = 'a'", "does not stand"),
    "a buried element": ("UPDATE penstock_task SET state = '!' WHERE address = 'a'", "state !"),
    "a taken element": ("UPDATE penstock_task SET state = 't' WHERE address = 'a'", "state t"),
    "a leased message": ("UPDATE penstock_task SET owner = 1 WHERE state = 't'", "held by session 1"),
    "a delayed message": ("UPDATE penstock_task SET state = '~' WHERE tube = 2 AND attempts = 0", "state ~"),
    "a last id that is too low": (
        "UPDATE penstock_counter SET last_ms = 5, last_seq = 9",
        "the last id is kept as 5-9",
    ),
    "a wrong counter": ("UPDATE penstock_counter SET taken = taken + 3", "counter taken"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "queue.db"
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        feeds = broker.tube("feeds", kind="round", period=1000)
        feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
        feeds.take(0)
        queue = broker.tube("queue", kind="reliable")
        queue.put_many(["one", "two"])
        queue.take(0)
        assert broker.check() == []
    return path


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(path: Path, name: str) -> None:
    statement, found = DAMAGE[name]
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        feeds, queue = broker.tube("feeds"), broker.tube("queue")
        assert any(found in finding.what for finding in broker.check()), broker.check()
        broker.check(repair=True)
        assert broker.check() == []
        assert [task.id for task in feeds.take_many(9)] == ["b"]
        assert [task.data for task in queue.recover(9, 0)] == ["one"]
        last = queue.inspect(-1, 1)[0]
        assert queue.put("three").id > last.id
        assert broker.check() == []
