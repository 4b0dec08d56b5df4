"""check finds what must not exist in tubes of unleased kinds, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.damage import UNLEASED, fill_unleased, must_mend_unleased
from tests.postgres.schemas import damage

DAMAGE = {
    **UNLEASED,
    "a last id that is too low": ("UPDATE penstock_mark SET last_ms = 5, last_seq = 9", "the last id is kept as 5-9"),
    "no last id": ("DELETE FROM penstock_mark", "the last id is kept as 0-0"),
    "a last hand-out that is too low": (
        "SELECT setval(serials, 1, false) FROM penstock_tube WHERE name = 'queue'",
        "kept as number 0, there is number 1",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, url: str, name: str) -> None:
    statement, found = DAMAGE[name]
    fill_unleased(broker)
    damage(url, statement)
    must_mend_unleased(broker, found)


def test_what_is_wrong_with_a_task_is_told_by_its_own_id(broker: penstock.Broker, url: str) -> None:
    broker.tube("feeds", kind="round", period=1000).put("x", id="a")
    damage(url, "UPDATE penstock_task SET rank1 = 7")
    wrong = "does not stand where its last hand-out put it"
    assert broker.check() == [penstock.Finding("feeds", "a", wrong, "put it right")]
    broker.check(repair=True)
