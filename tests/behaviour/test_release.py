"""release and release_all: the task returns to its old place (rule 5)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, facts, tasks
from tests.support.verbs import KINDS, TIMED_KINDS, drain, take


@pytest.mark.parametrize("kind", KINDS)
def test_a_released_task_is_back_at_its_old_place(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"])
    task = take(tube)
    assert tube.release(task) is None
    assert task.status is penstock.Status.READY
    assert drain(tube) == ["a", "b"]


def test_a_released_task_keeps_its_priority(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"pri": 1}), ("b", {"pri": 2})])
    take(tube).release()
    assert drain(tube) == ["a", "b"]


def test_release_changes_only_the_attempts(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    put = tube.put("x", pri=2, ttl=10, ttr=5)
    clock.advance(1)
    task = take(tube)
    task.release()
    assert facts(tube.peek(1)) == facts(put) | {"attempts": 1, "lease": task.lease, "taken": clock.seconds}


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_release_with_delay_makes_it_delayed(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    task = take(tube)
    task.release(delay=3)
    assert task.status is penstock.Status.DELAYED
    assert (tube.peek(1).status, tube.peek(1).due) == ("~", clock.seconds + 3)
    clock.advance(2.999)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert take(tube).id == 1


def test_release_with_delay_extends_the_ttl_by_it(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=4, ttr=10)
    start = clock.seconds
    clock.advance(1)
    take(tube).release(delay=5)
    assert tube.peek(1).expires == start + 9


def test_a_task_released_with_delay_returns_to_its_old_place(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    take(tube).release(delay=3)
    clock.advance(3)
    assert drain(tube) == ["a", "b"]


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_release_with_delay_is_for_kinds_that_have_it(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    task = take(tube)
    with pytest.raises(penstock.UnsupportedOption, match=r"(?s)(?=.*fifottl)(?=.*utubettl)"):
        task.release(delay=1)
    assert tube.peek(1).status is penstock.Status.TAKEN
    task.release(delay=0)
    assert tube.peek(1).status is penstock.Status.READY


def test_release_past_the_ttl_removes_the_task(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=3, ttr=10)
    task = take(tube)
    clock.advance(3)
    task.release(delay=5)
    assert task.status is penstock.Status.DONE
    assert tasks(tube) == {"done": 1}
    assert calls(tube) == {"put": 1, "take": 1, "release": 1, "ttl": 1}


def test_release_all_releases_tasks_of_all_sessions(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t"), connect().tube("t")
    tube.put_many(["a", "b", "c"])
    mine, other = take(tube), take(theirs)
    assert tube.release_all() == 2
    assert tasks(tube) == {"ready": 3, "total": 3}
    assert calls(tube) == {"put": 3, "take": 2, "release": 2}
    for task in (mine, other):
        with pytest.raises(penstock.NotTaken):
            task.ack()
    assert drain(tube) == ["a", "b", "c"]


def test_release_all_without_taken_tasks_returns_zero(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    assert tube.release_all() == 0
