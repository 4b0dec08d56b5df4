"""Errors of attempts: how each attempt that did not end with an ack ended, stored with the task and its outcome."""

from __future__ import annotations

import socket

import pytest

import penstock
from penstock.core.attempts import Failure
from penstock.core.lifecycle import Move
from penstock.core.task import Record, record_of
from penstock.operations.store_ops import settle
from penstock.testing import Clock
from tests.conftest import Connect

HOST = socket.gethostname()


def take(tube: penstock.Tube) -> penstock.Task:
    task = tube.take(0)
    assert task is not None
    return task


def take_all(tube: penstock.Tube, count: int) -> list[Record]:
    """Take that many tasks; the background thread may make some ready a moment later."""
    taken: list[penstock.Task] = []
    for _ in range(100):
        taken += tube.take_many(count - len(taken)) if len(taken) < count else []
    return [record_of(task) for task in taken]


def end(tube: penstock.Tube, verb: str, error: str, traceback: str = "", **more: object) -> None:
    """End an attempt as a worker does."""
    record = record_of(take(tube))
    session = None if verb == "bury" else record.owner
    failure = Failure(error, traceback, "host")
    move = Move(verb, record.id, session, record.lease, failure=failure, seen=record, **more)  # type: ignore[arg-type]
    assert settle(tube.runtime, tube.stored, [move]) != [None]


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_a_handlers_error_stays_with_its_task(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind)
    tube.put("a")
    assert tube.peek(1).errors == []
    end(tube, "release", "ValueError: no", "Traceback\n  …\N{SNOWMAN}")
    first = penstock.Attempt(1, clock.seconds, "host", "ValueError: no", "Traceback\n  …\N{SNOWMAN}")
    assert tube.peek(1).errors == [first]
    clock.advance(1)
    end(tube, "bury", "again", reason="again")
    second = penstock.Attempt(2, clock.seconds, "host", "again", "")
    assert [task.errors for task in tube.tasks()] == [[first, second]]
    tube.kick()
    task = take(tube)
    assert task.errors == []  # not read by take
    assert tube.peek(1).errors == [first, second]
    task.ack()
    with pytest.raises(penstock.NotFound):
        tube.peek(1)


def test_the_newest_five_are_kept(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("a", address="a")
    for number in range(7):
        end(tube, "release", f"error {number}", "x" * 10_000)
    kept = tube.peek(1).errors
    assert [(each.attempt, each.error) for each in kept] == [(number + 1, f"error {number}") for number in range(2, 7)]
    tube.ack(take(tube), "fine")
    outcome = tube.wait("a", 0)
    assert (outcome.status, outcome.result, outcome.errors) == ("done", "fine", kept)


def test_a_lapse_is_an_error(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=1, max_attempts=2)
    tube.put("a")
    take(tube)
    clock.advance(1)
    take(tube)
    lapse = penstock.Attempt(1, clock.seconds, "", "not settled before its ttr was over", "")
    assert tube.peek(1).errors == [lapse]
    clock.advance(1)
    tube.stats()
    assert (tube.peek(1).status, [each.attempt for each in tube.peek(1).errors]) == ("!", [1, 2])


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_a_dead_session_is_an_error_and_a_closed_one_is_not(connect: Connect, clock: Clock, kind: str) -> None:
    tube = connect().tube("t", kind)
    tube.put("a")
    other = connect()
    assert take(other.tube("t")).data == "a"
    other.close()
    assert tube.peek(1).errors == []
    session = connect().session(ttr=3)
    assert take(session.tube("t")).data == "a"
    session.close()
    clock.advance(3)
    assert take(tube).attempts == 3
    expected = penstock.Attempt(2, clock.seconds, "", "not settled before its session ended", "")
    assert tube.peek(1).errors == [expected]


def test_fail_is_an_error_that_is_kept_with_the_outcome(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("a", address="a")
    end(tube, "release", "first")
    take(tube).fail("broken", 7)
    outcome = tube.wait("a", 0)
    assert [(each.attempt, each.host, each.error) for each in outcome.errors] == [
        (1, "host", "first"),
        (2, HOST, "broken"),
    ]
    assert (outcome.error, outcome.code) == ("broken", 7)
    with pytest.raises(penstock.TaskFailed) as failed:
        outcome.unwrap()
    assert (failed.value.error, failed.value.code, failed.value.errors) == ("broken", 7, outcome.errors)
    tube.put("b", address="a")
    assert tube.peek(2).errors == []


def test_other_ends_of_an_attempt_are_not_errors(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("a")
    take(tube).release()
    take(tube).bury("no")
    tube.kick()
    take(tube)
    tube.release_all()
    with pytest.raises(ZeroDivisionError), take(tube):
        raise ZeroDivisionError
    assert tube.peek(1).errors == []


def test_acks_of_tasks_with_and_without_errors_in_one_call(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([0, (1, {"address": "a"}), 2, (3, {"address": "b"})])
    for _ in range(2):
        end(tube, "release", "no", extra=1)
    assert len(tube.tasks("~")) == 2
    group = tube.group("g")
    group.put(4)
    group.start()
    clock_free = tube.take_many(9)
    assert tube.ack_many(clock_free) == [True] * 3
    assert tube.wait("b", 0).errors == []


def test_outcomes_of_expired_and_deleted_tasks_keep_the_errors(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("a", address="a", ttl=5)
    tube.put("b", address="b")
    end(tube, "release", "no")
    tube.take_many(1)
    tube.release_all()
    clock.advance(5)
    assert [each.error for each in tube.wait("a", 0).errors] == ["no"]
    end(tube, "release", "neither")
    tube.delete(2)
    assert (tube.wait("b", 0).status, [each.error for each in tube.wait("b", 0).errors]) == ("deleted", ["neither"])


def test_a_late_holder_adds_no_error(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=1)
    tube.put("a")
    record = record_of(take(tube))
    clock.advance(1)
    move = Move("release", 1, record.owner, record.lease, failure=Failure("late"), seen=record)
    assert settle(tube.runtime, tube.stored, [move]) == [None]
    assert [each.error for each in tube.peek(1).errors] in ([], ["not settled before its ttr was over"])


def test_many_large_errors_at_once_do_not_block_the_tube(broker: penstock.Broker, clock: Clock) -> None:
    """Together they exceed the server's packet size."""
    tube = broker.tube("t", ttr=1)
    tube.put_many([(number, {"address": f"a{number}"}) for number in range(120)])
    for _ in range(3):
        taken = take_all(tube, 120)
        failure = Failure("no", "x" * 10_000, "host")
        moves = [Move("release", one.id, one.owner, one.lease, failure=failure, seen=one) for one in taken]
        assert None not in settle(tube.runtime, tube.stored, moves)
    take_all(tube, 120)
    clock.advance(1)
    taken = take_all(tube, 120)
    assert [len(task.errors) for task in tube.tasks(limit=1000)] == [4] * 120
    assert tube.ack_many([record.id for record in taken]) == [True] * 120
    assert len(tube.wait("a7", 0).errors) == 4
