"""A shell on a fresh SQLite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Commands on a new store."""
    return Shell(tmp_path, f"sqlite:///{tmp_path}/queue.db?durability=relaxed")
