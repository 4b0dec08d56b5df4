"""check finds what must not exist in tubes of unleased kinds, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.damage import UNLEASED, fill_unleased, must_mend_unleased
from tests.mysql.conftest import Connection

DAMAGE = {
    **UNLEASED,
    "a last id that is too low": ("UPDATE penstock_id SET last_ms = 5, last_seq = 9", "the last id is kept as 5-9"),
    "a last hand-out that is too low": ("DELETE FROM penstock_serial", "kept as number 0, there is number 1"),
    "an id of no task": ("DELETE FROM penstock_address", "address a"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, own: Connection, name: str) -> None:
    statement, found = DAMAGE[name]
    fill_unleased(broker)
    own.cursor().execute(statement)
    must_mend_unleased(broker, found)
