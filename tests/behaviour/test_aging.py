"""aging: a task that waits that many seconds gains one step of priority."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.verbs import TIMED_KINDS, drain, take


@pytest.mark.parametrize("kind", TIMED_KINDS)
@pytest.mark.parametrize(("waited", "order"), [(4.999, ["urgent", "old"]), (5, ["old", "urgent"])])
def test_waiting_makes_up_for_priority(
    broker: penstock.Broker, clock: Clock, kind: str, waited: float, order: list[str]
) -> None:
    tube = broker.tube("t", kind=kind, aging=5)
    tube.put("old", pri=1)
    clock.advance(waited)
    tube.put("urgent", pri=0)
    assert drain(tube) == order


def test_without_aging_priority_wins_however_long_the_wait(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("old", pri=1)
    clock.advance(14)
    tube.put("urgent", pri=0)
    assert drain(tube) == ["urgent", "old"]


def test_at_the_same_moment_priority_decides(broker: penstock.Broker) -> None:
    tube = broker.tube("t", aging=1)
    tube.put_many([("b", {"pri": 1}), ("a", {"pri": 0})])
    assert drain(tube) == ["a", "b"]


def test_a_released_task_keeps_the_rank_it_was_put_with(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", aging=5)
    tube.put("a", pri=1)
    clock.advance(3)
    tube.put("b", pri=1)
    task = take(tube)
    clock.advance(4)
    task.release()
    assert drain(tube) == ["a", "b"]


def test_the_largest_priority_still_ages(broker: penstock.Broker) -> None:
    tube = broker.tube("t", aging=3600)
    tube.put_many([("last", {"pri": 2**31 - 1}), ("first", {"pri": 0})])
    assert drain(tube) == ["first", "last"]
