"""why: what holds a task back, which session, since when and until when."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.verbs import take


def test_why_says_how_many_tasks_come_before(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c"])
    assert tube.why(3) == "task 3 is ready: 2 tasks ahead of it; the take after that gets it"
    assert tube.why(1) == "task 1 is ready: no task is ahead of it; the next take gets it"


def test_why_says_who_holds_a_taken_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    with broker.session() as session:
        take(session.tube("t"))
        assert str(session.id) in tube.why(1)


def test_why_says_until_when_a_task_is_delayed(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", delay=7)
    assert "delay" in tube.why(1).lower()
    clock.advance(7)
    assert "delay" not in tube.why(1).lower()


def test_why_names_the_reason_of_a_buried_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.bury(1, "mailbox full")
    assert tube.why(1) == "task 1 is buried (mailbox full): kick makes it ready again"


def test_why_names_the_task_that_blocks_a_micro_queue(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    tube.put_many(["a", ("b", {"utube": "elsewhere"})], utube="customer-7")
    tube.put("c", utube="customer-7")
    take(tube)
    reason = tube.why(3)
    assert "customer-7" in reason
    assert "1" in reason.replace("customer-7", "")


def test_why_says_that_the_tube_is_paused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.pause()
    assert tube.why(1) == "task 1 is ready, but tube t is paused: resume the tube first"


def test_an_unknown_task_is_not_found(broker: penstock.Broker) -> None:
    with pytest.raises(penstock.NotFound, match="17"):
        broker.tube("t").why(17)


def test_reading_it_changes_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.why(1)
    assert take(tube).attempts == 1
