"""max_attempts: a task that was handed out that many times is buried (rule 11)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import KINDS, take


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_release_buries(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, max_attempts=2)
    tube.put("x")
    take(tube).release()
    last = take(tube)
    last.release()
    assert last.status is penstock.Status.BURIED
    assert tasks(tube) == {"buried": 1, "total": 1}
    assert calls(tube) == {"put": 1, "take": 2, "release": 1, "bury": 1}


def test_the_last_lapse_buries(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", max_attempts=1, ttr=3)
    tube.put("x")
    take(tube)
    clock.advance(3)
    assert tube.take(0) is None
    assert tasks(tube) == {"buried": 1, "total": 1}
    assert calls(tube) == {"put": 1, "take": 1, "ttr": 1, "bury": 1}


def test_the_last_session_end_buries(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t", kind="fifo", max_attempts=1), connect()
    tube.put("x")
    take(theirs.tube("t"))
    theirs.close()
    assert tasks(tube) == {"buried": 1, "total": 1}
    assert calls(tube) == {"put": 1, "take": 1, "bury": 1}


def test_release_all_buries_what_used_up_its_attempts(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"max_attempts": 1}), "b"])
    tube.take_many(2)
    tube.release_all()
    assert tasks(tube) == {"ready": 1, "buried": 1, "total": 2}
    assert calls(tube) == {"put": 2, "take": 2, "release": 1, "bury": 1}


def test_a_release_with_delay_buries_too(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=1)
    tube.put("x")
    task = take(tube)
    task.release(delay=3)
    assert task.status is penstock.Status.BURIED


def test_the_puts_limit_overrides_the_tubes(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=5)
    tube.put("x", max_attempts=1)
    take(tube).release()
    assert tube.peek(1).status is penstock.Status.BURIED


def test_without_a_limit_a_task_is_handed_out_again_and_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    for _ in range(20):
        take(tube).release()
    assert tube.peek(1).attempts == 20


def test_the_reason_is_a_sentence_when_there_was_none(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=2)
    tube.put("x")
    take(tube).release()
    take(tube).release()
    reason = tube.peek(1).reason
    assert reason is not None
    assert "2" in reason


def test_the_last_reason_is_kept(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=2)
    tube.put("x")
    with pytest.raises(KeyError), take(tube):
        raise KeyError("first")
    take(tube).release()
    assert "first" in (tube.peek(1).reason or "")


def test_kick_resets_the_attempts(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=2)
    tube.put("x")
    take(tube).release()
    take(tube).release()
    tube.kick()
    take(tube).release()
    assert tube.peek(1).status is penstock.Status.READY
    take(tube).release()
    assert tube.peek(1).status is penstock.Status.BURIED


def test_the_last_attempt_may_still_ack(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=1)
    tube.put("x")
    take(tube).ack()
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


def test_a_task_past_its_ttl_is_gone_and_not_buried(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", max_attempts=1)
    tube.put("x", ttl=2, ttr=10)
    task = take(tube)
    clock.advance(2)
    task.release()
    assert tasks(tube) == {"done": 1}
