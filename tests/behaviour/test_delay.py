"""delay: a task is not handed out early (rules 9 and 18)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.inspection import calls, tasks
from tests.support.verbs import TIMED_KINDS, drain, take


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_a_delayed_task_is_handed_out_when_due(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    task = tube.put("x", delay=3)
    assert (task.status, task.due) == ("~", clock.seconds + 3)
    clock.advance(2.999)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert take(tube).data == "x"
    assert calls(tube) == {"put": 1, "delay": 1, "take": 1}


def test_a_due_task_counts_as_ready(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", delay=3)
    assert tasks(tube) == {"delayed": 1, "total": 1}
    clock.advance(3)
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_due_task_is_ordered_by_its_id(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("early", delay=3)
    tube.put("late")
    clock.advance(3)
    assert drain(tube) == ["early", "late"]


def test_delay_zero_is_ready_at_once(broker: penstock.Broker) -> None:
    task = broker.tube("t").put("x", delay=0)
    assert (task.status, task.due) == ("r", None)


def test_a_delay_of_less_than_a_millisecond_is_still_a_delay(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    assert tube.put("x", delay=0.0001).status is penstock.Status.DELAYED
    clock.advance(0.001)
    assert take(tube).data == "x"


def test_a_delay_longer_than_the_ttl_is_accepted(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttl=1)
    tube.put("x", delay=5)
    clock.advance(5)
    assert take(tube).data == "x"


def test_many_tasks_due_at_once_all_become_ready(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many(range(2_500), delay=1)
    clock.advance(1)
    assert tasks(tube) == {"ready": 2_500, "total": 2_500}
    assert calls(tube) == {"put": 2_500, "delay": 2_500}


def test_a_clock_set_back_postpones_a_delay_by_the_jump_at_most(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", delay=2)
    clock.advance(-3)
    clock.advance(4.999)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert take(tube).data == "x"
