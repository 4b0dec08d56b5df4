"""ttl: how long a task may wait (rules 7 and 18)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.inspection import calls, everything, tasks
from tests.support.verbs import TIMED_KINDS, drain, take


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_a_task_past_its_ttl_is_gone(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    assert tube.put("x", ttl=3).expires == clock.seconds + 3
    clock.advance(3)
    assert tube.take(0) is None
    with pytest.raises(penstock.NotFound):
        tube.peek(1)
    assert tube.tasks() == []
    assert (tasks(tube), calls(tube)) == ({"done": 1}, {"put": 1, "ttl": 1})


def test_a_task_is_there_until_its_ttl(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=3)
    clock.advance(2.999)
    assert take(tube).data == "x"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_waiting_tasks_expire_in_every_state(broker: penstock.Broker, clock: Clock, state: str) -> None:
    tube = broker.tube("t")
    task = tube.put("x", ttl=3, delay=3 if state == "delayed" else 0)
    if state == "buried":
        tube.bury(task)
    clock.advance(6 if state == "delayed" else 3)
    with pytest.raises(penstock.NotFound):
        tube.peek(1)
    with pytest.raises(penstock.NotFound):
        tube.bury(1)
    with pytest.raises(penstock.NotFound):
        tube.delete(1)
    assert tasks(tube) == {"done": 1}
    assert calls(tube)["ttl"] == 1


def test_ttl_is_the_tubes_unless_the_put_has_one(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttl=4)
    assert tube.put("x").expires == clock.seconds + 4
    assert tube.put("x", ttl=2).expires == clock.seconds + 2


def test_without_any_ttl_a_task_never_expires(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    assert tube.put("x").expires is None
    clock.advance(10**9)
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_delay_at_put_extends_the_ttl(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    assert tube.put("x", ttl=2, delay=5).expires == clock.seconds + 7
    clock.advance(6.999)
    assert take(tube).data == "x"


def test_ttl_does_not_kill_a_taken_task(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=2, ttr=10)
    task = take(tube)
    clock.advance(5)
    assert tube.peek(1).status is penstock.Status.TAKEN
    assert tasks(tube) == {"taken": 1, "total": 1}
    task.ack()
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


def test_a_lapsed_lease_past_the_ttl_removes_the_task(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=2, ttr=4)
    take(tube)
    clock.advance(4)
    assert tube.take(0) is None
    assert tasks(tube) == {"done": 1}
    assert calls(tube) == {"put": 1, "take": 1, "ttr": 1, "ttl": 1}


def test_ttl_and_ttr_at_the_same_moment_remove_the_task(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=3, ttr=3)
    take(tube)
    clock.advance(3)
    assert tube.take(0) is None
    assert tasks(tube) == {"done": 1}


def test_expired_tasks_make_way_for_the_next(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"ttl": 1}), ("b", {"ttl": 1}), "c"])
    clock.advance(1)
    assert drain(tube) == ["c"]


def test_stats_first_applies_everything_due(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many(range(2_500), ttl=1)
    clock.advance(1)
    assert tasks(tube) == {"done": 2_500}
    assert calls(tube) == {"put": 2_500, "ttl": 2_500}


def test_take_is_not_held_up_by_many_expired_tasks(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many(range(2_500), ttl=1)
    tube.put("fresh")
    clock.advance(1)
    assert take(tube).data == "fresh"


def test_len_counts_no_expired_task(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"ttl": 1}), "b"])
    assert len(tube) == 2
    clock.advance(1)
    assert len(tube) == 1


def test_an_expired_task_stays_expired_when_the_clock_advances(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=1)
    clock.advance(1)
    tube.stats()
    before = everything(tube)
    clock.advance(5)
    assert everything(tube) == before
