"""drop and truncate (rule 13)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.verbs import KINDS, take


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_tube_is_gone(broker: penstock.Broker, connect: Connect, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"])
    tube.bury(2)
    tube.drop()
    assert broker.tubes() == []
    assert connect().tubes() == []


USES: dict[str, Callable[[penstock.Tube], object]] = {
    "put": lambda tube: tube.put("x"),
    "put_many": lambda tube: tube.put_many(["x"]),
    "take": lambda tube: tube.take(0),
    "take_many": lambda tube: tube.take_many(1),
    "ack": lambda tube: tube.ack(1),
    "ack_many": lambda tube: tube.ack_many([1]),
    "release": lambda tube: tube.release(1),
    "touch": lambda tube: tube.touch(1, 1),
    "fail": lambda tube: tube.fail(1, "broken"),
    "bury": lambda tube: tube.bury(1),
    "kick": lambda tube: tube.kick(),
    "delete": lambda tube: tube.delete(1),
    "peek": lambda tube: tube.peek(1),
    "tasks": lambda tube: tube.tasks(),
    "release_all": lambda tube: tube.release_all(),
    "truncate": lambda tube: tube.truncate(),
    "drop": lambda tube: tube.drop(),
    "stats": lambda tube: tube.stats(),
    "pause": lambda tube: tube.pause(),
    "resume": lambda tube: tube.resume(),
    "why": lambda tube: tube.why(1),
}


def test_handles_of_a_dropped_tube_raise(broker: penstock.Broker, connect: Connect) -> None:
    other = connect()
    for use in USES.values():
        mine, theirs = broker.tube("mail"), other.tube("mail")
        mine.drop()
        for handle in (mine, theirs):
            with pytest.raises(penstock.NoSuchTube, match="mail"):
                use(handle)


def test_a_new_tube_of_the_name_starts_empty(broker: penstock.Broker) -> None:
    old = broker.tube("t", kind="fifo")
    old.put("x")
    old.drop()
    new = broker.create_tube("t", "utubettl", ttl=5)
    assert tasks(new) == {}
    assert new.take(0) is None
    with pytest.raises(penstock.NoSuchTube):
        old.put("y")


def test_drop_refuses_while_tasks_are_taken(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("mail")
    tube.put("x")
    task = take(tube)
    with pytest.raises(penstock.TubeBusy, match="tube mail has taken tasks: ack or release them"):
        connect().tube("mail").drop()
    task.ack()
    tube.drop()
    assert broker.tubes() == []


@pytest.mark.parametrize("kind", KINDS)
def test_truncate_removes_everything_and_returns_the_number(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b", "c"])
    task = take(tube)
    tube.bury(2)
    assert tube.truncate() == 3
    assert tasks(tube) == {"done": 3}
    assert tube.tasks() == []
    with pytest.raises(penstock.NotTaken):
        task.ack()
    with pytest.raises(penstock.NotFound):
        tube.peek(3)


def test_truncate_of_an_empty_tube_returns_zero(broker: penstock.Broker) -> None:
    assert broker.tube("t").truncate() == 0


def test_truncate_of_many_tasks(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(range(2_500))
    assert tube.truncate() == 2_500
    assert tasks(tube) == {"done": 2_500}


def test_a_truncated_tube_keeps_working(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    take(tube)
    tube.truncate()
    tube.put("y")
    assert take(tube).data == "y"


def test_truncate_leaves_other_tubes_alone(broker: penstock.Broker) -> None:
    tube, other = broker.tube("t"), broker.tube("other")
    tube.put("x")
    other.put("y")
    tube.truncate()
    assert take(other).data == "y"
