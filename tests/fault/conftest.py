"""A new SQLite file for each test, with its lock files next to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sqlite_files import broker as broker
from tests.support.sqlite_files import path as path


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
