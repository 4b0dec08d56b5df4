"""why: what holds a task back, who, since when, until when."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.behaviour.verbs import take


def test_a_ready_task_is_told_how_many_come_before(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c"])
    assert tube.why(3) == "task 3 is ready: 2 tasks ahead of it; the take after that gets it"
    assert tube.why(1) == "task 1 is ready: no task is ahead of it; the next take gets it"


def test_a_taken_task_is_told_who_holds_it(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    with broker.session() as session:
        take(session.tube("t"))
        assert str(session.id) in tube.why(1)


def test_a_delayed_task_is_told_until_when(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", delay=7)
    assert "delay" in tube.why(1).lower()
    clock.advance(7)
    assert "delay" not in tube.why(1).lower()


def test_a_buried_task_is_told_the_reason(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.bury(1, "mailbox full")
    assert tube.why(1) == "task 1 is buried (mailbox full): kick makes it ready again"


def test_a_task_behind_its_micro_queue_is_told_which_task_holds_it(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    tube.put_many(["a", ("b", {"utube": "elsewhere"})], utube="customer-7")
    tube.put("c", utube="customer-7")
    take(tube)
    told = tube.why(3)
    assert "customer-7" in told
    assert "1" in told.replace("customer-7", "")


def test_a_task_in_a_paused_tube_is_told_so(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.pause()
    assert tube.why(1) == "task 1 is ready, but tube t is paused: resume lets it go"


def test_an_unknown_task_is_not_found(broker: penstock.Broker) -> None:
    with pytest.raises(penstock.NotFound, match="17"):
        broker.tube("t").why(17)


def test_asking_changes_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.why(1)
    assert take(tube).attempts == 1
