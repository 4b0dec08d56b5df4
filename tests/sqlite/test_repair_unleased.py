"""check finds what must not exist in tubes of unleased kinds, and repair mends it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock
from tests.damage import UNLEASED, fill_unleased, must_mend_unleased

DAMAGE = {
    **UNLEASED,
    "a delayed message": ("UPDATE penstock_task SET state = '~' WHERE tube = 2 AND attempts = 0", "state ~"),
    "a last id that is too low": (
        "UPDATE penstock_counter SET last_ms = 5, last_seq = 9",
        "the last id is kept as 5-9",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(tmp_path: Path, name: str) -> None:
    statement, found = DAMAGE[name]
    path = tmp_path / "queue.db"
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        fill_unleased(broker)
    db = apsw.Connection(str(path))
    db.execute(statement)
    db.close()
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        must_mend_unleased(broker, found)
