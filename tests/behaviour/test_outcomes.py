"""Outcomes: how a task with an address ended, stored for those who wait (section 3, addresses and outcomes)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, refused
from tests.support.threads import begin, until
from tests.support.verbs import KINDS, take

PATIENCE = 30.0
WEEK = 7 * 24 * 3600


def waiting(broker: penstock.Broker, tube: penstock.Tube, address: str) -> Future[penstock.Outcome]:
    """A wait that is already blocked, in another thread."""
    room = broker.runtime.wait_queue
    before = len(room.topics)
    future = begin(lambda: tube.wait(address, PATIENCE))
    until(lambda: len(room.topics) > before)
    return future


RESULTS: dict[str, object] = {
    "none": None, "zero": 0, "empty": "", "text": "text", "bytes": b"\x00bytes", "dict": {"a": [1, 2.5]}, "list": [],
    "false": False,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_of_an_ack_is_the_outcome(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    for address, result in RESULTS.items():
        tube.put("x", address=address)
        take(tube).ack(result)
        outcome = tube.wait(address, 0)
        assert (outcome.status, outcome.result, outcome.error, outcome.code) == ("done", result, None, None)
        assert type(outcome.result) is type(result)
        assert outcome.unwrap() == result


@pytest.mark.parametrize("code", [None, 7, -1, "E7", "not found", 2**53 - 1])
def test_the_error_and_code_of_fail_are_the_outcome(broker: penstock.Broker, code: str | int | None) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    take(tube).fail("no such user", code)
    assert tube.wait("a", 0) == penstock.Outcome("failed", None, "no such user", code)
    with pytest.raises(penstock.TaskFailed, match="no such user"):
        tube.wait("a", 0).unwrap()


@pytest.mark.parametrize("end", ["delete", "truncate"])
def test_a_removed_task_is_deleted(broker: penstock.Broker, end: str) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    tube.delete(1) if end == "delete" else tube.truncate()
    assert tube.wait("a", 0) == penstock.Outcome("deleted")
    with pytest.raises(penstock.TaskFailed, match="deleted"):
        tube.wait("a", 0).unwrap()


@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "released"])
def test_a_task_past_its_ttl_is_expired(broker: penstock.Broker, clock: Clock, state: str) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a", ttl=2, ttr=9, delay=1 if state == "delayed" else 0)
    if state == "buried":
        tube.bury(1)
    task = take(tube) if state == "released" else None
    clock.advance(3)
    if task:
        task.release()
    assert tube.wait("a", 0).status == "expired"
    with pytest.raises(penstock.TaskFailed, match="expired"):
        tube.wait("a", 0).unwrap()


def test_ack_many_and_bound_ids_leave_outcomes_too(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("x", {"address": "a"}), ("y", {"address": "b"}), "z"])
    held = tube.take_many(3)
    assert tube.ack_many([held[0], held[1].id, 99, held[2]]) == [True, True, False, True]
    assert [tube.wait(address, 0).status for address in "ab"] == ["done", "done"]


def test_a_late_ack_leaves_no_outcome(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=1)
    tube.put("x", address="a")
    task = take(tube)
    clock.advance(1)
    with pytest.raises(penstock.NotTaken):
        task.ack("late")
    with pytest.raises(TimeoutError):
        tube.wait("a", 0)
    take(tube).ack("right")
    assert tube.wait("a", 0).result == "right"


def test_an_address_never_seen_is_unknown(broker: penstock.Broker) -> None:
    outcome = broker.tube("t").wait("nobody")
    assert outcome == penstock.Outcome("unknown")
    with pytest.raises(penstock.NotFound):
        outcome.unwrap()


def test_a_wait_that_times_out_raises(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    before = everything(tube)
    with pytest.raises(TimeoutError, match=r"(?s)(?=.*\ba\b)(?=.*\bt\b)"):
        tube.wait("a", 0)
    with pytest.raises(TimeoutError):
        tube.wait("a", 0.05)
    assert everything(tube) == before


def test_other_brokers_see_an_outcome(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    take(tube).ack(1)
    assert connect().tube("t").wait("a", 0).result == 1


def test_an_outcome_is_kept_for_the_retention(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", retention=10)
    tube.put("x", address="a")
    take(tube).ack("kept")
    clock.advance(9.999)
    assert tube.wait("a", 0).result == "kept"
    clock.advance(0.001)
    assert tube.wait("a", 0) == penstock.Outcome("unknown")


def test_the_default_retention_is_a_week(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    assert broker.tube("t", retention=WEEK).name == "t"
    tube.put("x", address="a")
    take(tube).fail("broken")
    clock.advance(WEEK - 0.001)
    assert tube.wait("a", 0).status == "failed"
    clock.advance(0.001)
    assert tube.wait("a", 0).status == "unknown"


def test_a_new_put_clears_the_old_outcome(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    take(tube).fail("first")
    tube.put("y", address="a")
    with pytest.raises(TimeoutError):
        tube.wait("a", 0)
    take(tube).ack("second")
    assert tube.wait("a", 0) == penstock.Outcome("done", "second")


def test_the_result_of_a_plain_task_is_ignored(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    take(tube).ack({"big": "result"})
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


@pytest.mark.parametrize("size", [30, 31])
def test_a_result_over_the_limit_is_refused_and_changes_nothing(broker: penstock.Broker, size: int) -> None:
    tube = broker.tube("t", max_payload=30)
    tube.put("x", address="a")
    task = take(tube)
    if size == 30:
        task.ack(b"r" * size)
        return
    with pytest.raises(penstock.PayloadTooLarge, match="result"):
        task.ack(b"r" * size)
    task.ack("small")
    assert tube.wait("a", 0).result == "small"


@pytest.mark.parametrize("result", [{1}, float("nan"), 1j, "\ud800", (1, 2)], ids=repr)
def test_a_bad_result_is_refused_and_changes_nothing(broker: penstock.Broker, result: object) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    task = take(tube)
    with pytest.raises(penstock.BadValue):
        task.ack(result)
    task.ack()


BAD_CODES: list[Any] = [True, 1.5, b"x", [1], "", " ", "x" * 201, "\0", 2**53, 10**400]


def test_a_bad_code_is_refused_and_changes_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    task = take(tube)
    refused(BAD_CODES, lambda code: task.fail("broken", code), "code")
    task.ack()


BAD_TIMEOUTS: list[Any] = [-1, float("nan"), "1", True]


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=repr)
def test_a_bad_timeout_is_refused(broker: penstock.Broker, timeout: float) -> None:
    with pytest.raises(penstock.BadValue, match="timeout"):
        broker.tube("t").wait("a", timeout)


# blocked waits, in real time


ENDS: dict[str, Callable[[penstock.Tube, penstock.Task], object]] = {
    "done": lambda tube, task: task.ack("r"),
    "failed": lambda tube, task: task.fail("broken"),
    "deleted": lambda tube, task: tube.delete(task.id),
}


@pytest.mark.usefixtures("unscanned")
@pytest.mark.parametrize("status", ENDS)
def test_a_wait_is_woken_by_the_end_in_this_process(live: penstock.Broker, store_url: str, status: str) -> None:
    tube = live.tube("t")
    tube.put("x", address="a")
    task = take(tube)
    with penstock.connect(store_url) as other:
        futures = [waiting(live, tube, "a"), begin(lambda: other.tube("t").wait("a", PATIENCE))]
        ENDS[status](tube, task)
        assert [future.result(PATIENCE).status for future in futures] == [status, status]


@pytest.mark.usefixtures("unscanned")
def test_a_wait_ends_when_the_ttl_does(live: penstock.Broker) -> None:
    tube = live.tube("t")
    began = time.monotonic()
    tube.put("x", address="a", ttl=0.2)
    assert tube.wait("a", PATIENCE).status == "expired"
    assert time.monotonic() - began >= 0.15


@pytest.mark.usefixtures("unscanned")
@pytest.mark.parametrize("end", ["truncate", "drop"])
def test_a_wait_ends_with_its_tube(live: penstock.Broker, end: str) -> None:
    tube = live.tube("t")
    tube.put("x", address="a")
    future = waiting(live, tube, "a")
    tube.truncate() if end == "truncate" else tube.drop()
    assert future.result(PATIENCE) == penstock.Outcome("deleted")


def test_a_wait_on_a_dropped_tube_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.drop()
    with pytest.raises(penstock.NoSuchTube):
        tube.wait("a", 0)


def test_callers_that_already_wait_get_the_old_outcome_after_a_new_put(live: penstock.Broker) -> None:
    tube = live.tube("t")
    for round in range(5):
        tube.put(round, address="a")
        task = take(tube)
        future = waiting(live, tube, "a")
        task.ack(round)
        tube.put("next", address="a")  # before or after the waiter has checked
        assert future.result(PATIENCE) == penstock.Outcome("done", round)
        take(tube).ack()


def test_an_outcome_is_found_by_id_after_the_address_was_put_again(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", retention=100)
    tube.put("x", address="a")
    take(tube).ack("first")
    tube.put("y", address="a")
    store = broker.runtime.store
    clock.advance(59)
    ending = store.outcomes(tube.stored, [1])[0].ending
    assert ending is not None
    assert ending.result == b'"first"'
    clock.advance(1)
    assert store.outcomes(tube.stored, [1])[0].ending is None


def test_closing_the_broker_ends_its_waits(live: penstock.Broker) -> None:
    tube = live.tube("t")
    tube.put("x", address="a")
    future = waiting(live, tube, "a")
    live.close()
    with pytest.raises(penstock.StoreUnavailable):
        future.result(PATIENCE)


def test_many_waiters_of_many_addresses_each_get_their_own(live: penstock.Broker) -> None:
    tube = live.tube("t")
    tube.put_many((n, {"address": f"a{n}"}) for n in range(10))
    futures = [(n, begin(lambda n=n: tube.wait(f"a{n}", PATIENCE))) for n in range(10) for _ in range(3)]  # type: ignore[misc]
    for _ in range(10):
        task = take(tube)
        task.ack(task.data)
    assert [future.result(PATIENCE).result for _, future in futures] == [n for n, _ in futures]
