"""check finds what must not exist among addresses, outcomes and groups, and repair mends it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock
from tests.damage import GROUPS, fill_groups, must_mend_groups

DAMAGE = {
    **GROUPS,
    "a wrong mark": ("UPDATE penstock_tube SET moving = 1", "the mark", ["s", "end"]),
    "an early outcome": (
        "INSERT INTO penstock_outcome (key, tube, address, status, until) SELECT key, tube, 'a', 'done', 9e12 "
        "FROM penstock_task WHERE group_name = 'open'",
        "still there",
        ["s", "end"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(tmp_path: Path, name: str) -> None:
    statement, found, expected = DAMAGE[name]
    path = tmp_path / "queue.db"
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        fill_groups(broker)
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        must_mend_groups(broker, found, expected)
