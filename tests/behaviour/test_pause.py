"""pause and resume: take returns nothing, everything else works."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.verbs import KINDS, drain, take


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_tube_hands_out_nothing(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    tube.pause()
    assert tube.take(0) is None
    assert tube.take_many(5) == []
    tube.resume()
    assert drain(tube) == ["x"]


def test_puts_and_settles_continue(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    first, second = tube.take_many(2)
    tube.pause()
    tube.put("c")
    first.ack()
    second.release()
    assert tasks(tube) == {"ready": 2, "done": 1, "total": 2}


def test_the_clock_runs_in_a_paused_tube(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"ttl": 1}), ("b", {"delay": 1})])
    tube.pause()
    clock.advance(1)
    assert tasks(tube) == {"ready": 1, "done": 1, "total": 1}


def test_a_pause_holds_for_every_broker(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t"), connect().tube("t")
    tube.put("x")
    tube.pause()
    assert theirs.take(0) is None
    theirs.resume()
    assert take(tube).data == "x"


def test_one_resume_ends_two_pauses(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.pause()
    tube.pause()
    tube.resume()
    tube.resume()
    assert take(tube).data == "x"


def test_other_tubes_are_not_paused(broker: penstock.Broker) -> None:
    paused, other = broker.tube("paused"), broker.tube("other")
    other.put("x")
    paused.pause()
    assert take(other).data == "x"
