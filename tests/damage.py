"""Damage to a SQL store behind its back: what is there before, and that check finds it and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.behaviour.verbs import drain, take

# name -> what damages an element or a message, and what is found
UNLEASED: dict[str, tuple[str, str]] = {
    "an element out of its place": ("UPDATE penstock_task SET rank1 = 7 WHERE address = 'a'", "does not stand"),
    "a buried element": ("UPDATE penstock_task SET state = '!' WHERE address = 'a'", "state !"),
    "a taken element": ("UPDATE penstock_task SET state = 't' WHERE address = 'a'", "state t"),
    "a leased message": ("UPDATE penstock_task SET owner = 1 WHERE state = 't'", "held by session 1"),
    "a delayed message": ("UPDATE penstock_task SET state = '~' WHERE address LIKE '%-2'", "state ~"),
    "a wrong counter": ("UPDATE penstock_counter SET taken = taken + 3", "counter taken"),
}

# States that nothing ends for a task without micro-queue, moment and group: those that wait for one, and unknown ones.
STRANDED = ("q", "~", "g", "-", "x")

# name -> what damages a group, what is found, and what can be taken once it is mended
GROUPS: dict[str, tuple[str, str, list[str]]] = {
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
        "UPDATE penstock_group SET state = 'cancelling' WHERE name = 'open'",
        "do not follow",
        ["s", "end"],
    ),
}

# name -> what damages micro-queues, and what is found
LANES: dict[str, tuple[str, str]] = {
    "no row": ("DELETE FROM penstock_lane", "counts (0, 0, 0), there are (1, 0, 2)"),
    "a wrong number": ("UPDATE penstock_lane SET waiting = waiting + 3", "counts (1, 0, 5), there are (1, 0, 2)"),
    "heads that must wait": (
        "UPDATE penstock_task SET state = 'r' WHERE state = 'q'",
        "ready tasks takeable and has not",
    ),
    "no heads": ("UPDATE penstock_task SET state = 'q' WHERE state = 'r'", "ready tasks takeable and has not"),
}


def fill_stranded(broker: penstock.Broker, state: str) -> str:
    """A task, and what brings it into that state."""
    broker.tube("t").put("a")
    assert broker.check() == []
    return f"UPDATE penstock_task SET state = '{state}'"


def must_mend_stranded(broker: penstock.Broker, state: str) -> None:
    """It is found, mended, and the task can be taken. Until then an unknown state is told as such."""
    if state == "x":
        with pytest.raises(penstock.StoreCorrupt, match="check"):
            broker.tube("t").tasks()
    assert (1, f"in state {state}, which nothing ends") in [(found.id, found.what) for found in broker.check()]
    _must_mend(broker, "which nothing ends")
    assert drain(broker.tube("t")) == ["a"]
    assert broker.check() == []


def fill_unleased(broker: penstock.Broker) -> None:
    """Two elements, of which one was handed out, and two messages, of which one is delivered."""
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
    feeds.take(0)
    queue.put_many(["one", "two"])
    queue.take(0)
    assert broker.check() == []


def must_mend_unleased(broker: penstock.Broker, found: str) -> None:
    """It is found, mended, and everything goes on where it was."""
    feeds, queue = broker.tube("feeds"), broker.tube("queue")
    _must_mend(broker, found)
    assert [task.id for task in feeds.take_many(9)] == ["b"]
    assert [task.data for task in queue.take_many(9)] == ["two"]
    assert [task.data for task in queue.recover(9, 0)] == ["one", "two"]
    newest = queue.inspect(-1, 1, pending=True)[0]
    assert queue.put("three").id > newest.id
    assert queue.ack_many([newest.id]) == [newest.id]
    assert broker.check() == []


def fill_groups(broker: penstock.Broker, address: str | None = None) -> None:
    """An open group and a started one with end work."""
    tube = broker.tube("t")
    tube.group("open").put("o", address=address)
    started = tube.group("started")
    started.put("s")
    started.on_end("end")
    started.start()
    assert broker.check() == []


def must_mend_groups(broker: penstock.Broker, found: str, expected: list[str]) -> None:
    """It is found, mended, and this is what can be taken then."""
    _must_mend(broker, found)
    assert sorted(map(str, drain(broker.tube("t")))) == sorted(expected)
    assert broker.check() == []


def fill_lanes(broker: penstock.Broker, *, fair: bool) -> None:
    """A micro-queue with a taken task, and one without."""
    tube = broker.tube("t", kind="utube", fair=fair)
    tube.put_many(["a1", "a2", "a3"], utube="a")
    tube.put_many(["b1", "b2"], utube="b")
    take(tube)
    assert broker.check() == []


def must_mend_lanes(broker: penstock.Broker, found: str) -> None:
    """It is found, mended, and both go on in their order."""
    tube = broker.tube("t")
    _must_mend(broker, found)
    assert [task.data for task in tube.take_many(9)] == ["b1"]
    assert tube.release_all() == 2
    assert sorted(map(str, drain(tube))) == ["a1", "a2", "a3", "b1", "b2"]
    assert broker.check() == []


def _must_mend(broker: penstock.Broker, found: str) -> None:
    assert any(found in finding.what for finding in broker.check()), broker.check()
    broker.check(repair=True)
    assert broker.check() == []
