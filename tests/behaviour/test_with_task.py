"""with task: acks at the end of the block, releases if it raises."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import KINDS, take


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_block_acks(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    with take(tube) as task:
        assert task.data == "x"
    assert task.status is penstock.Status.DONE
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_block_releases_and_is_raised(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    with pytest.raises(ValueError, match="mailbox full"), take(tube):
        raise ValueError("mailbox full")
    assert (tube.peek(1).status, tube.peek(1).attempts) == ("r", 1)
    assert calls(tube) == {"put": 1, "take": 1, "release": 1}


def test_the_text_of_the_error_is_kept_as_reason(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with pytest.raises(ValueError, match="mailbox full"), take(tube):
        raise ValueError("mailbox full")
    assert tube.peek(1).reason == "ValueError: mailbox full"
    assert take(tube).reason == "ValueError: mailbox full"


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("text")


def test_an_exception_that_cannot_be_printed_releases_too(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with pytest.raises(Mute), take(tube):
        raise Mute
    assert (tube.peek(1).status, tube.peek(1).reason) == ("r", "Mute")


def test_a_keyboard_interrupt_releases_too(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with pytest.raises(KeyboardInterrupt), take(tube):
        raise KeyboardInterrupt
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_the_backoff_of_the_tube_is_the_delay(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", backoff=penstock.Backoff(base=2, factor=2, limit=100, jitter=0))
    tube.put("x")
    for wait in (2, 4):
        task = take(tube)
        with pytest.raises(RuntimeError), task:
            raise RuntimeError
        assert (task.status, tube.peek(1).due) == ("~", clock.seconds + wait)
        clock.advance(wait)
    assert take(tube).attempts == 3


def test_the_jitter_of_the_backoff_stays_within_its_share(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", backoff=penstock.Backoff(base=10, factor=1, jitter=0.5))
    tube.put_many(range(20))
    for task in tube.take_many(20):
        with pytest.raises(RuntimeError), task:
            raise RuntimeError
    waits = {(task.due or 0) - clock.seconds for task in tube.tasks("~")}
    assert len(waits) > 1
    assert min(waits) >= 5
    assert max(waits) <= 15.001


def test_a_plain_release_does_not_use_the_backoff(broker: penstock.Broker) -> None:
    tube = broker.tube("t", backoff=penstock.Backoff(base=2, jitter=0))
    tube.put("x")
    take(tube).release()
    assert tube.peek(1).status is penstock.Status.READY


def test_a_task_that_the_block_settled_is_not_settled_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    with take(tube) as task:
        task.bury("odd")
    with pytest.raises(RuntimeError), take(tube) as task:
        task.ack()
        raise RuntimeError
    assert calls(tube) == {"put": 2, "take": 2, "bury": 1, "ack": 1}


def test_a_dead_lease_raises_at_the_end_of_the_block(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=2)
    tube.put("x")
    with pytest.raises(penstock.NotTaken), take(tube):
        clock.advance(2)
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_dead_lease_does_not_hide_the_error_of_the_block(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=2)
    tube.put("x")
    with pytest.raises(ValueError, match="mailbox full"), take(tube):
        clock.advance(2)
        raise ValueError("mailbox full")
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_closed_broker_does_not_hide_the_error_of_the_block(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t"), connect()
    tube.put("x")
    with pytest.raises(ValueError, match="mailbox full"), take(theirs.tube("t")):
        theirs.close()
        raise ValueError("mailbox full")
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_the_last_attempt_is_buried_with_the_error(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_attempts=1)
    tube.put("x")
    task = take(tube)
    with pytest.raises(ValueError, match="mailbox full"), task:
        raise ValueError("mailbox full")
    assert task.status is penstock.Status.BURIED
    assert "mailbox full" in (tube.peek(1).reason or "")


def test_an_error_whose_text_cannot_be_stored_still_releases(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with pytest.raises(ValueError, match="odd"), take(tube):
        raise ValueError("odd \ud800 \0 " + "x" * 100_000)
    found = tube.peek(1)
    assert found.status is penstock.Status.READY
    assert "odd" in (found.reason or "")
