"""What is stored before it is damaged, and that check finds the damage and repair mends it."""

from __future__ import annotations

import pytest

import penstock
from tests.behaviour.verbs import drain, take

# States that nothing ends for a task without micro-queue, moment and group: those that wait for one, and unknown ones.
STRANDED = ("q", "~", "g", "-", "x")


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
    """The damage is found and repaired, and both tubes continue where they were."""
    _must_mend(broker, found)
    must_continue_unleased(broker)


def must_continue_unleased(broker: penstock.Broker) -> None:
    """The tubes of `fill_unleased` hand out what comes next."""
    feeds, queue = broker.tube("feeds"), broker.tube("queue")
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
