"""check finds what must not exist among addresses, outcomes and groups, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.damage import GROUPS, fill_groups, must_mend_groups
from tests.postgres.schemas import damage

DAMAGE = {
    **GROUPS,
    "an early outcome": (
        "INSERT INTO penstock_outcome (key, tube, address, status, until) SELECT key, tube, 'a', 'done', 9e12 "
        "FROM penstock_task WHERE group_name = 'open'",
        "still there",
        ["s", "end"],
    ),
    "a wrong mark": (
        "UPDATE penstock_group SET state = 'cancelling', moving = true WHERE name = 'open'",
        "the mark",
        ["s", "end"],
    ),
    "an end too early": (
        "UPDATE penstock_group SET state = 'done', until = 9e15 WHERE name = 'started'",
        "has 1 tasks left",
        ["s", "end"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, url: str, name: str) -> None:
    statement, found, expected = DAMAGE[name]
    fill_groups(broker)
    damage(url, statement)
    must_mend_groups(broker, found, expected)
