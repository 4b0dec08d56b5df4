"""check finds tasks that nothing would ever make ready, and repair does."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock
from tests.damage import STRANDED, fill_stranded, must_mend_stranded


@pytest.mark.parametrize("state", STRANDED)
def test_a_stranded_task_is_found_and_made_ready(tmp_path: Path, state: str) -> None:
    path = tmp_path / "queue.db"
    with penstock.connect(f"sqlite:///{path}?durability=relaxed") as broker:
        statement = fill_stranded(broker, state)
        db = apsw.Connection(str(path))
        db.execute(statement)
        db.close()
        must_mend_stranded(broker, state)
