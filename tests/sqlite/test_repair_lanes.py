"""check finds what must not exist in micro-queues, and repair mends it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock
from tests.damage import LANES, fill_lanes, must_mend_lanes


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("name", LANES)
def test_damage_is_found_and_mended(tmp_path: Path, name: str, fair: bool) -> None:
    statement, found = LANES[name]
    path = tmp_path / "queue.db"
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        fill_lanes(broker, fair=fair)
        db = apsw.Connection(str(path))
        db.set_busy_timeout(30_000)  # the broker has a session, which beats
        db.execute(statement)
        db.close()
        must_mend_lanes(broker, found)
