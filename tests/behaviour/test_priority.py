"""pri: smaller first, ties by id (kinds fifottl and utubettl)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.verbs import TIMED_KINDS, drain, take


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_smaller_priorities_come_first(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many([("b", {"pri": 2}), ("c", {"pri": 3}), ("a", {"pri": 1})])
    assert drain(tube) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_equal_priorities_come_in_put_order(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b", "c"], pri=4)
    assert drain(tube) == ["a", "b", "c"]


def test_priority_is_the_tubes_unless_the_put_has_one(broker: penstock.Broker) -> None:
    tube = broker.tube("t", pri=5)
    assert (tube.put("x").pri, tube.put("y", pri=0).pri) == (5, 0)
    assert drain(tube) == ["y", "x"]


def test_the_largest_priority_is_the_least_urgent(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("last", {"pri": 2**31 - 1}), ("middle", {"pri": 2**31 - 2}), ("first", {"pri": 0})])
    assert drain(tube) == ["first", "middle", "last"]


def test_a_lapsed_task_keeps_its_priority(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=1)
    tube.put_many([("b", {"pri": 2}), ("a", {"pri": 1}), ("c", {"pri": 3})])
    assert take(tube).data == "a"
    clock.advance(1)
    assert drain(tube) == ["a", "b", "c"]
