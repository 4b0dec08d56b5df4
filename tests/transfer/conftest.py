"""The stores that tubes leave and come into; of pools one, because in front of every database they do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import STORES

MOVABLE = tuple(name for name in STORES if name not in ("pool-postgres", "pool-mariadb"))


@pytest.fixture(params=MOVABLE)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each sort."""
    return STORES[request.param](tmp_path)
