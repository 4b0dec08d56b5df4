"""ttr: how long a lease lasts (rules 8, 16 and 18)."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.options import PutOptions, TubeOptions
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, refused, tasks
from tests.support.verbs import TIMED_KINDS, drain, take


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_a_lapsed_lease_makes_the_task_ready_for_others(
    broker: penstock.Broker, connect: Connect, clock: Clock, kind: str
) -> None:
    tube, theirs = broker.tube("t", kind=kind), connect().tube("t")
    tube.put("x", ttr=3)
    first = take(tube)
    assert first.due == clock.seconds + 3
    clock.advance(2.999)
    assert theirs.take(0) is None
    clock.advance(0.001)
    task = take(theirs)
    assert (task.id, task.attempts) == (1, 2)
    assert task.lease > first.lease
    assert calls(tube) == {"put": 1, "take": 2, "ttr": 1}


@pytest.mark.parametrize(
    ("tube_options", "put_options", "wanted"),
    [
        ({}, {}, None),
        ({"ttl": 9}, {}, 9),
        ({"ttl": 9}, {"ttl": 8}, 8),
        ({"ttl": 9, "ttr": 7}, {}, 7),
        ({"ttr": 7}, {"ttl": 8}, 7),
        ({"ttl": 9, "ttr": 7}, {"ttr": 6}, 6),
        ({}, {"ttl": 8, "ttr": 6}, 6),
    ],
)
def test_ttr_is_the_puts_else_the_tubes_else_the_ttl_else_none(
    broker: penstock.Broker, clock: Clock, tube_options: TubeOptions, put_options: PutOptions, wanted: int | None
) -> None:
    tube = broker.tube("t", **tube_options)
    tube.put_many([("x", put_options)])
    clock.advance(1)
    assert take(tube).due == (None if wanted is None else clock.seconds + wanted)


def test_without_ttr_and_ttl_the_lease_lives_as_long_as_the_session(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t"), connect()
    tube.put("x")
    take(theirs.tube("t"))
    assert tube.take(0) is None
    theirs.close()
    assert take(tube).attempts == 2


def test_a_lapsed_task_is_back_at_its_old_place(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put_many(["a", "b"])
    take(tube)
    clock.advance(3)
    assert drain(tube) == ["a", "b"]


def test_ttr_counts_from_each_take(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("x")
    clock.advance(2)
    take(tube).release()
    clock.advance(2)
    assert take(tube).due == clock.seconds + 3


def test_touch_adds_to_the_deadline(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("x")
    task = take(tube)
    start = clock.seconds
    clock.advance(1)
    task.touch(4)
    task.touch(1.5)
    assert tube.peek(1).due == start + 8.5
    clock.advance(7.499)
    task.ack()
    assert calls(tube) == {"put": 1, "take": 1, "touch": 2, "ack": 1}


def test_touch_is_for_this_hand_out_only(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("x")
    task = take(tube)
    task.touch(5)
    task.release()
    assert take(tube).due == clock.seconds + 3


def test_touch_without_a_deadline_does_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    task.touch(5)
    assert tube.peek(1).due is None
    task.ack()


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_touch_is_for_kinds_with_a_ttr(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    task = take(tube)
    with pytest.raises(penstock.UnsupportedOption, match=r"(?s)(?=.*fifottl)(?=.*utubettl)"):
        task.touch(1)
    task.ack()


def test_touch_of_bad_seconds_is_refused(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("x")
    task = take(tube)
    refused([0, -1, float("nan"), float("inf"), True, "1", None, 1e308], task.touch)
    assert tube.peek(1).due == clock.seconds + 3


def test_a_clock_set_back_postpones_a_deadline_by_the_jump_at_most(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("x")
    take(tube)
    clock.advance(-2)
    clock.advance(4.999)
    assert tasks(tube) == {"taken": 1, "total": 1}
    clock.advance(0.001)
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_ready_tasks_are_taken_when_the_clock_is_set_back(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("before")
    clock.advance(-3600)
    tube.put("after")
    assert drain(tube) == ["before", "after"]
