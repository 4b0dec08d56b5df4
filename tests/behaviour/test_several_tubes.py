"""broker.take: several tubes, earlier names first."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import tasks, waiters
from tests.support.threads import begin, until


def taken(broker: penstock.Broker, *names: str) -> tuple[str, object] | None:
    task = broker.take(names, timeout=0)
    return None if task is None else (task.tube, task.data)


def test_earlier_names_come_first(broker: penstock.Broker) -> None:
    broker.tube("mail").put("old", pri=0)
    broker.tube("urgent").put_many(["a", "b"], pri=9)
    order = [taken(broker, "urgent", "mail") for _ in range(4)]
    assert order == [("urgent", "a"), ("urgent", "b"), ("mail", "old"), None]


def test_the_order_is_the_callers(broker: penstock.Broker) -> None:
    broker.tube("mail").put("x")
    broker.tube("urgent").put("y")
    assert taken(broker, "mail", "urgent") == ("mail", "x")


def test_tubes_of_different_kinds(broker: penstock.Broker, clock: Clock) -> None:
    broker.tube("a", kind="utube").put("x")
    broker.tube("b", kind="fifottl").put("y", delay=2)
    broker.tube("c", kind="fifo").put("z")
    assert [taken(broker, "b", "a", "c") for _ in range(3)] == [("a", "x"), ("c", "z"), None]
    clock.advance(2)
    assert taken(broker, "b", "a", "c") == ("b", "y")


def test_a_task_from_several_tubes_settles_in_its_own(broker: penstock.Broker) -> None:
    first, second = broker.tube("first"), broker.tube("second")
    first.put("x")
    second.put("y")
    first.bury(1)
    task = broker.take(["first", "second"], timeout=0)
    assert task is not None
    task.ack()
    assert (tasks(first), tasks(second)) == ({"buried": 1, "total": 1}, {"done": 1})


def test_a_paused_tube_is_skipped(broker: penstock.Broker) -> None:
    broker.tube("first").put("x")
    broker.tube("second").put("y")
    broker.tube("first").pause()
    assert taken(broker, "first", "second") == ("second", "y")


def test_an_unknown_tube_takes_nothing(broker: penstock.Broker) -> None:
    broker.tube("mail").put("x")
    with pytest.raises(penstock.NoSuchTube, match="nowhere"):
        broker.take(["mail", "nowhere"], timeout=0)
    assert tasks(broker.tube("mail")) == {"ready": 1, "total": 1}


def test_a_dropped_tube_is_unknown(broker: penstock.Broker) -> None:
    broker.tube("mail").drop()
    with pytest.raises(penstock.NoSuchTube, match="mail"):
        broker.take(["mail"], timeout=0)


def test_a_tube_recreated_by_another_process_is_found_by_its_name(broker: penstock.Broker, connect: Connect) -> None:
    broker.tube("mail")
    assert taken(broker, "mail") is None
    theirs = connect()
    theirs.tube("mail").drop()
    theirs.create_tube("mail", "utube").put("x")
    assert taken(broker, "mail") == ("mail", "x")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_take_from_several_tubes_leaves_no_waiter(live: penstock.Broker, name: str) -> None:
    tubes = [live.tube(each, kind=kind) for each, kind in (("a", "fifo"), ("b", "utube"), ("c", "fifottl"))]
    for _ in range(2):  # the second time, each tube knows the session
        taking = begin(lambda: live.take(["a", "b", "c"], 30))
        until(lambda: [waiters(live, tube.name) for tube in tubes] == [1, 1, 1])
        live.tube(name).put("x")
        task = taking.result(30)
        assert task is not None
        assert task.tube == name
        task.ack()
        assert [waiters(live, tube.name) for tube in tubes] == [0, 0, 0]
    assert live.take(["a", "b", "c"], 0.01) is None
    for tube in tubes:
        tube.drop()


def test_an_empty_list_of_tubes_is_refused(broker: penstock.Broker) -> None:
    with pytest.raises(penstock.BadValue):
        broker.take([], timeout=0)
