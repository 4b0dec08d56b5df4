"""The stores that tubes leave and come into: all but the pool, which says so (tests/pool/test_moving.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import STORES

MOVABLE = tuple(name for name in STORES if not name.startswith("pool"))


@pytest.fixture(params=MOVABLE)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each sort."""
    return STORES[request.param](tmp_path)
