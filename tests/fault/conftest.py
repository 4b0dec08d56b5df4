"""A SQLite file of its own for each test, whose locks lie beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue will be."""
    return tmp_path / "queue.db"


@pytest.fixture
def broker(path: Path) -> Iterator[penstock.Broker]:
    with penstock.connect(f"sqlite:///{path}") as broker:
        yield broker
