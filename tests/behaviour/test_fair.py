"""fair: micro-queues take turns, so that one busy customer never starves the others."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.verbs import UTUBE_KINDS, drain, take, take_all

both_kinds = pytest.mark.parametrize("kind", UTUBE_KINDS)


@both_kinds
def test_micro_queues_take_turns(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, fair=True)
    tube.put_many(["a1", "a2", "a3"], utube="a")
    tube.put_many(["b1", "b2"], utube="b")
    tube.put("c1", utube="c")
    assert drain(tube) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_without_fair_they_come_by_id(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    tube.put_many(["a1", "a2"], utube="a")
    tube.put("b1", utube="b")
    assert drain(tube) == ["a1", "a2", "b1"]


@both_kinds
def test_a_newcomer_does_not_wait_behind_a_long_queue(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, fair=True)
    tube.put_many(range(50), utube="busy")
    take(tube).ack()
    tube.put("hello", utube="small")
    assert take(tube).data == "hello"


@pytest.mark.never_restarted  # a rebuilt pool restarts its turns
def test_a_micro_queue_that_was_idle_has_no_credit(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utube", fair=True)
    tube.put_many(["a1", "a2", "a3"], utube="a")
    clock.advance(5)
    tube.put_many(["b1", "b2", "b3"], utube="b")
    # Serving a1 makes both turns equal; equal turns come by id.
    assert drain(tube) == ["a1", "a2", "b1", "a3", "b2", "b3"]


def test_priority_comes_before_the_turn(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl", fair=True)
    tube.put_many(["a1", "a2"], utube="a", pri=1)
    tube.put("b1", utube="b", pri=2)
    assert drain(tube) == ["a1", "a2", "b1"]


def test_a_fair_tube_still_takes_one_of_each_micro_queue(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube", fair=True)
    tube.put_many(["a1", "a2"], utube="a")
    tube.put_many(["b1", "b2"], utube="b")
    assert take_all(tube) == ["a1", "b1"]


def test_turns_hold_with_several_places_in_each_micro_queue(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube", fair=True, utube_limit=2)
    tube.put_many(["a1", "a2", "a3"], utube="a")
    tube.put_many(["b1", "b2", "b3"], utube="b")
    assert [take(tube).data for _ in range(4)] == ["a1", "b1", "a2", "b2"]
    assert tube.take(0) is None


def test_a_released_task_comes_at_the_next_turn_of_its_micro_queue(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube", fair=True)
    tube.put_many(["a1", "a2"], utube="a")
    tube.put("b1", utube="b")
    take(tube).release()
    assert drain(tube) == ["b1", "a1", "a2"]
