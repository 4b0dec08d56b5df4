"""check finds what must not exist among addresses, outcomes and groups, and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.behaviour.helpers import drain
from tests.mysql.conftest import Connection

# name -> what damages the database, what is found, and what can be taken once it is mended
DAMAGE: dict[str, tuple[str, str, list[object]]] = {
    "a wrong count": (
        "UPDATE penstock_group SET remaining = 7 WHERE name = 'started'",
        "7 tasks are left",
        ["s", "end"],
    ),
    "a lost end": (
        "DELETE FROM penstock_task WHERE group_name = 'started'",
        "should have ended",
        ["end"],
    ),
    "a task of no group": (
        "DELETE FROM penstock_group WHERE name = 'open'",
        "its group is not there",
        ["s", "end", "o"],
    ),
    "a task that runs ahead": (
        "UPDATE penstock_task SET state = 'r' WHERE group_name = 'open'",
        "can be taken",
        ["s", "end"],
    ),
    "a start that nobody follows": (
        "UPDATE penstock_group SET state = 'started' WHERE name = 'open'",
        "do not follow",
        ["s", "end", "o"],
    ),
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


@pytest.fixture
def tube(broker: penstock.Broker) -> penstock.Tube:
    """With an open and a started group."""
    tube = broker.tube("t")
    tube.group("open").put("o", address="a")
    started = tube.group("started")
    started.put("s")
    started.on_end("end")
    started.start()
    assert broker.check() == []
    return tube


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, tube: penstock.Tube, own: Connection, name: str) -> None:
    statement, found, expected = DAMAGE[name]
    own.cursor().execute(statement)
    assert any(found in finding.what for finding in broker.check()), broker.check()
    broker.check(repair=True)
    assert broker.check() == []
    assert sorted(map(str, drain(tube))) == sorted(map(str, expected))
    assert broker.check() == []
    if "o" not in expected and "cancel" not in name:
        with pytest.raises(penstock.DuplicateAddress):
            tube.put("again", address="a")


def test_a_mark_that_nobody_took_away_is_no_fault(
    broker: penstock.Broker, tube: penstock.Tube, own: Connection
) -> None:
    own.cursor().execute("UPDATE penstock_tube SET moving = 1")
    assert broker.check() == []
    assert drain(tube) == ["s", "end"]
    cursor = own.cursor()
    cursor.execute("SELECT moving FROM penstock_tube")
    assert cursor.fetchall() == ((0,),)
