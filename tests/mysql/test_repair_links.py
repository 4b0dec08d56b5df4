"""check finds what must not exist among addresses, outcomes and groups, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.behaviour.verbs import drain
from tests.damage import GROUPS, fill_groups, must_mend_groups
from tests.mysql.conftest import Connection

DAMAGE = {
    **GROUPS,
    "a cancel that nobody follows": (
        "UPDATE penstock_group SET state = 'cancelling', live = NULL WHERE name = 'open'",
        "do not follow",
        ["s", "end"],
    ),
    "a list of tasks that lacks one": (
        "DELETE FROM penstock_member WHERE waits = 1",
        "its list of tasks",
        ["s", "end"],
    ),
    "a missing mark": (
        "UPDATE penstock_group SET state = 'started', moving = 1 WHERE name = 'open'",
        "the mark",
        ["s", "end", "o"],
    ),
    "a lost address": ("DELETE FROM penstock_address", "address a", ["s", "end"]),
    "an address of no task": (
        "INSERT INTO penstock_address (tube, address, id) SELECT no, 'b', 9 FROM penstock_tube",
        "address b",
        ["s", "end"],
    ),
    "an early outcome": (
        "INSERT INTO penstock_outcome (tube, id, address, status, until)"
        " SELECT tube, id, 'a', 'done', 9e12 FROM penstock_task WHERE group_name = 'open'",
        "still there",
        ["s", "end"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, own: Connection, name: str) -> None:
    statement, found, expected = DAMAGE[name]
    fill_groups(broker, address="a")
    own.cursor().execute(statement)
    must_mend_groups(broker, found, expected)
    if "o" not in expected and "cancel" not in name:
        with pytest.raises(penstock.DuplicateAddress):
            broker.tube("t").put("again", address="a")


def test_a_mark_that_nobody_took_away_is_no_fault(broker: penstock.Broker, own: Connection) -> None:
    fill_groups(broker)
    own.cursor().execute("UPDATE penstock_tube SET moving = 1")
    assert broker.check() == []
    assert drain(broker.tube("t")) == ["s", "end"]
    cursor = own.cursor()
    cursor.execute("SELECT moving FROM penstock_tube")
    assert cursor.fetchall() == ((0,),)
