"""check finds what must not exist among addresses, outcomes and groups, and repair mends it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock
from tests.behaviour.helpers import drain

# name -> what damages the file, what is found, and what can be taken once it is mended
DAMAGE: dict[str, tuple[str, str, list[object]]] = {
    "a wrong count": (
        "UPDATE penstock_group SET remaining = 7 WHERE name = 'started'",
        "7 tasks are left",
        ["s", "end"],
    ),
    "a lost end": (
        "DELETE FROM penstock_task WHERE group_name = 'started'",
        "should have ended",
        ["end"],
    ),
    "a task of no group": (
        "DELETE FROM penstock_group WHERE name = 'open'",
        "its group is not there",
        ["s", "end", "o"],
    ),
    "a task that runs ahead": (
        "UPDATE penstock_task SET state = 'r' WHERE group_name = 'open'",
        "can be taken",
        ["s", "end"],
    ),
    "a start that nobody follows": (
        "UPDATE penstock_group SET state = 'started' WHERE name = 'open'",
        "do not follow",
        ["s", "end", "o"],
    ),
    "a cancel that nobody follows": (
        "UPDATE penstock_group SET state = 'cancelling' WHERE name = 'open'",
        "do not follow",
        ["s", "end"],
    ),
    "a wrong mark": ("UPDATE penstock_tube SET moving = 1", "the mark", ["s", "end"]),
    "an early outcome": (
        "INSERT INTO penstock_outcome (key, tube, address, status, until) SELECT key, tube, 'a', 'done', 9e12 "
        "FROM penstock_task WHERE group_name = 'open'",
        "still there",
        ["s", "end"],
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with an open and a started group."""
    path = tmp_path / "queue.db"
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        tube = broker.tube("t")
        tube.group("open").put("o")
        started = tube.group("started")
        started.put("s")
        started.on_end("end")
        started.start()
        assert broker.check() == []
    return path


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(path: Path, name: str) -> None:
    statement, found, expected = DAMAGE[name]
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        assert any(found in finding.what for finding in broker.check()), broker.check()
        broker.check(repair=True)
        assert broker.check() == []
        assert sorted(map(str, drain(broker.tube("t")))) == sorted(map(str, expected))
        assert broker.check() == []
