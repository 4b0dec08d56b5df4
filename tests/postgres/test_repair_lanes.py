"""check finds what must not exist in micro-queues, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.damage import LANES, fill_lanes, must_mend_lanes
from tests.postgres.schemas import damage


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("name", LANES)
def test_damage_is_found_and_mended(broker: penstock.Broker, url: str, name: str, fair: bool) -> None:
    statement, found = LANES[name]
    fill_lanes(broker, fair=fair)
    damage(url, statement)
    must_mend_lanes(broker, found)
