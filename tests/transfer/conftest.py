"""The stores that tubes are moved between; one pool only, because pools behave alike on every database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import STORES

MOVABLE = tuple(name for name in STORES if name not in ("pool-postgres", "pool-mariadb"))


@pytest.fixture(params=MOVABLE)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store of each kind."""
    return STORES[request.param](tmp_path)
