"""check finds what must not be stored, and changes nothing; repair corrects it, and every task can be taken."""

from __future__ import annotations

import pytest

import penstock
from tests.repair.conftest import Damage
from tests.support.verbs import drain, take


def must_repair(broker: penstock.Broker, found: str, tube: str = "t") -> None:
    """Assert that check finds it in that tube, twice; that repair reports it and leaves nothing to find."""
    findings = broker.check()
    assert broker.check() == findings
    for report in (findings, broker.check(repair=True)):
        assert any(found in finding.what and finding.tube == tube for finding in report), report
    assert broker.check() == []


# states and leases

# States in which a task without micro-queue, deadline and group would stay forever, and unknown ones.
STRANDED = ("q", "~", "g", "-", "x")


@pytest.mark.parametrize("state", STRANDED)
def test_a_task_that_nothing_makes_ready(broker: penstock.Broker, damage: Damage, state: str) -> None:
    tube = broker.tube("t")
    tube.put("a")
    assert broker.check() == []
    damage(f"UPDATE penstock_task SET state = '{state}'")
    if state == "x":
        with pytest.raises(penstock.StoreCorrupt, match="check"):
            tube.tasks()
    assert (1, f"in state {state}, which nothing ends") in [(found.id, found.what) for found in broker.check()]
    must_repair(broker, "which nothing ends")
    assert drain(tube) == ["a"]
    assert broker.check() == []


@pytest.mark.parametrize("owner", ["NULL", "999999"])
@pytest.mark.parametrize("kind", ["fifottl", "utube"])
def test_a_lease_of_no_session(broker: penstock.Broker, damage: Damage, kind: str, owner: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"])
    held = take(tube)
    damage(f"UPDATE penstock_task SET owner = {owner} WHERE state = 't'")
    must_repair(broker, "no live session holds it")
    with pytest.raises(penstock.NotTaken):
        held.ack()
    assert drain(tube) == ["a", "b"]
    assert broker.check() == []


@pytest.mark.parametrize("name", ["taken", "delayed", "buried", "done"])
def test_a_wrong_counter(broker: penstock.Broker, damage: Damage, name: str) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c", "d"])
    tube.put("later", delay=5)
    take(tube).ack()
    take(tube).bury()
    take(tube)
    before = tube.stats()
    damage(f"UPDATE penstock_counter SET {name} = {name} + 3")
    must_repair(broker, f"the counter {name} is 4, but should be 1")
    assert tube.stats() == before
    assert drain(tube) == ["d"]


def test_a_waiter_that_is_gone(broker: penstock.Broker, damage: Damage) -> None:
    tube = broker.tube("t")
    damage("INSERT INTO penstock_waiter (handle, tube, takes) SELECT 'nobody', no, 1 FROM penstock_tube")
    must_repair(broker, "handle nobody is registered as waiting, but does not exist")
    tube.drop()


# groups and outcomes

# name -> what damages a group, what is found, and what can be taken once it is repaired
GROUPS: dict[str, tuple[str, str, list[str]]] = {
    "a wrong count": (
        "UPDATE penstock_group SET remaining = 7 WHERE name = 'started'",
        "group started: counts 7 tasks left, but has 1",
        ["s", "end"],
    ),
    "too small a total": (
        "UPDATE penstock_group SET total = 0 WHERE name = 'started'",
        "group started: counts 0 tasks put, but has 1",
        ["s", "end"],
    ),
    "a lost end": ("DELETE FROM penstock_task WHERE group_name = 'started'", "should have ended", ["end"]),
    "an end too early": (
        "UPDATE penstock_group SET state = 'done', until = 9000000000000 WHERE name = 'started'",
        "group started: is done, but has 1 tasks left",
        ["s", "end"],
    ),
    "a cancel that left a task": (
        "UPDATE penstock_group SET state = 'cancelled', until = 9000000000000 WHERE name = 'open'",
        "group open: is cancelled, but has 1 tasks left",
        ["s", "end"],
    ),
    "a task of no group": (
        "DELETE FROM penstock_group WHERE name = 'open'",
        "its group does not exist",
        ["s", "end", "o"],
    ),
    "a task that runs ahead": (
        "UPDATE penstock_task SET state = 'r' WHERE group_name = 'open'",
        "group open: is not started, but 1 of its tasks can be taken",
        ["s", "end"],
    ),
    "a start that nobody follows": (
        "UPDATE penstock_group SET state = 'started' WHERE name = 'open'",
        "group open: 1 tasks do not have its state yet, and nothing changes them",
        ["s", "end", "o"],
    ),
    "a cancel that nobody follows": (
        "UPDATE penstock_group SET state = 'cancelling' WHERE name = 'open'",
        "group open: 1 tasks do not have its state yet, and nothing changes them",
        ["s", "end"],
    ),
    "an early outcome": (
        "INSERT INTO penstock_outcome (pk, tube, address, status, until)"
        " SELECT pk, tube, 'a', 'done', 9000000000000 FROM penstock_task WHERE group_name = 'open'",
        "has an outcome, but is still in its tube",
        ["s", "end"],
    ),
}


def fill_groups(broker: penstock.Broker) -> penstock.Tube:
    """Create an open group, whose task has an address, and a started one with end work."""
    tube = broker.tube("t")
    tube.group("open").put("o", address="a")
    started = tube.group("started")
    started.put("s")
    started.on_end("end")
    started.start()
    assert broker.check() == []
    return tube


@pytest.mark.parametrize("name", GROUPS)
def test_damaged_groups(broker: penstock.Broker, damage: Damage, name: str) -> None:
    statement, found, expected = GROUPS[name]
    tube = fill_groups(broker)
    damage(statement)
    must_repair(broker, found)
    assert sorted(map(str, drain(tube))) == sorted(expected)
    if len(tube):  # the task of the open group, which keeps its address
        with pytest.raises(penstock.DuplicateAddress):
            tube.put("again", address="a")
    else:
        tube.put("again", address="a")
    assert broker.check() == []


def test_a_group_marked_as_turning_without_need_is_not_damage(broker: penstock.Broker, damage: Damage) -> None:
    tube = fill_groups(broker)
    damage("UPDATE penstock_group SET moving = 1 WHERE name = 'started'")
    assert broker.check() == []
    assert drain(tube) == ["s", "end"]


# micro-queues

# name -> what damages micro-queues, and what is found
QUEUES: dict[str, tuple[str, str]] = {
    "no row": ("DELETE FROM penstock_utube", "micro-queue a counts (0, 0, 0), but has (1, 0, 2)"),
    "a wrong number": (
        "UPDATE penstock_utube SET waiting = waiting + 3",
        "micro-queue a counts (1, 0, 5), but has (1, 0, 2)",
    ),
    "heads that must wait": (
        "UPDATE penstock_task SET state = 'r' WHERE state = 'q'",
        "the first 0 ready tasks of micro-queue a, and only these, must be takeable",
    ),
    "no heads": (
        "UPDATE penstock_task SET state = 'q' WHERE state = 'r'",
        "the first 1 ready tasks of micro-queue b, and only these, must be takeable",
    ),
}


def fill_queues(broker: penstock.Broker, *, fair: bool) -> penstock.Tube:
    """Create a micro-queue with a taken task, and one without."""
    tube = broker.tube("t", kind="utube", fair=fair)
    tube.put_many(["a1", "a2", "a3"], utube="a")
    tube.put_many(["b1", "b2"], utube="b")
    take(tube)
    assert broker.check() == []
    return tube


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("name", QUEUES)
def test_damaged_micro_queues(broker: penstock.Broker, damage: Damage, name: str, fair: bool) -> None:
    statement, found = QUEUES[name]
    tube = fill_queues(broker, fair=fair)
    damage(statement)
    must_repair(broker, found)
    assert [task.data for task in tube.take_many(9)] == ["b1"]
    assert tube.release_all() == 2
    assert sorted(map(str, drain(tube))) == ["a1", "a2", "a3", "b1", "b2"]
    assert broker.check() == []


@pytest.mark.parametrize("fair", [False, True])
def test_one_repair_is_enough_for_everything(broker: penstock.Broker, damage: Damage, fair: bool) -> None:
    """Counters that depend on tasks are computed after the tasks are repaired."""
    tube = fill_queues(broker, fair=fair)
    for statement in (
        "UPDATE penstock_task SET state = 'x' WHERE state = 'r'",
        "UPDATE penstock_task SET owner = 999999 WHERE state = 't'",
        "UPDATE penstock_counter SET taken = 9, delayed = 9, buried = 9, done = 9",
        *(statement for statement, _ in QUEUES.values()),
    ):
        damage(statement)
    must_repair(broker, "which nothing ends")
    taken = drain(tube)
    assert [name for name in taken if str(name).startswith("a")] == ["a1", "a2", "a3"]
    assert [name for name in taken if str(name).startswith("b")] == ["b1", "b2"]
    assert broker.check() == []


# kinds without leases

# name -> what damages an element or a message, where, and what is found
UNLEASED: dict[str, tuple[str, str, str]] = {
    "an element out of its place": (
        "UPDATE penstock_task SET rank1 = 7 WHERE address = 'a'",
        "feeds",
        "is not where its last hand-out put it",
    ),
    "a buried element": ("UPDATE penstock_task SET state = '!' WHERE address = 'a'", "feeds", "is in state !"),
    "a taken element": ("UPDATE penstock_task SET state = 't' WHERE address = 'a'", "feeds", "is in state t"),
    "a leased message": ("UPDATE penstock_task SET owner = 1 WHERE state = 't'", "queue", "is held by session 1"),
    "a delayed message": (
        "UPDATE penstock_task SET state = '~' WHERE attempts = 0 AND address LIKE '%-%'",
        "queue",
        "is in state ~",
    ),
    "a wrong counter": ("UPDATE penstock_counter SET taken = taken + 3", "queue", "the counter taken is 4"),
    "a last id that is too low": (
        "UPDATE penstock_counter SET last_ms = 5, last_seq = 9",
        "queue",
        "the stored last id is 5-9",
    ),
}


@pytest.mark.parametrize("name", UNLEASED)
def test_damaged_elements_and_messages(broker: penstock.Broker, damage: Damage, name: str) -> None:
    """Of two elements one was handed out, of two messages one is delivered."""
    statement, where, found = UNLEASED[name]
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
    feeds.take(0)
    queue.put_many(["one", "two"])
    queue.take(0)
    assert broker.check() == []
    damage(statement)
    must_repair(broker, found, where)
    _must_continue(broker)


def _must_continue(broker: penstock.Broker) -> None:
    """Assert that both tubes hand out the next item."""
    feeds, queue = broker.tube("feeds"), broker.tube("queue")
    assert [task.id for task in feeds.take_many(9)] == ["b"]
    assert [task.data for task in queue.take_many(9)] == ["two"]
    assert [task.data for task in queue.recover(9, 0)] == ["one", "two"]
    newest = queue.inspect(-1, 1, pending=True)[0]
    assert queue.put("three").id > newest.id
    assert queue.ack_many([newest.id]) == [newest.id]
    assert broker.check() == []
