"""tube.cancel removes a task in any state, with the outcome `cancelled` (sections 3 and 10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.testing import Clock
from tests.support.inspection import calls, tasks
from tests.support.verbs import KINDS, drain, take

STATES: dict[str, Callable[[penstock.Tube], object]] = {
    "ready": lambda tube: None,
    "taken": lambda tube: take(tube),
    "buried": lambda tube: tube.bury(1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", STATES)
def test_cancel_by_id_removes_a_task_in_any_state(broker: penstock.Broker, kind: str, state: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("a", address="a", reply_to="replies")
    STATES[state](tube)
    assert tube.cancel(1, "too late") is True
    assert tube.wait("a", 0) == penstock.Outcome("cancelled", error="too late")
    assert drain(broker.tube("replies")) == [{"id": 1, "address": "a", "status": "cancelled", "error": "too late"}]
    assert tasks(tube) == {"done": 1}
    assert calls(tube)["delete"] == 1
    with pytest.raises(penstock.NotFound):
        tube.peek(1)


def test_cancel_removes_a_delayed_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("a", delay=5, address="a")
    assert tube.cancel(1)
    assert tube.wait("a", 0) == penstock.Outcome("cancelled")


def test_cancel_of_a_task_that_is_not_there_is_false(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    assert tube.cancel(1) is False
    tube.put("a")
    take(tube).ack()
    assert tube.cancel(1) is False
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


def test_the_holder_of_a_cancelled_task_cannot_ack_it(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("a")
    task = take(tube)
    assert tube.cancel(task.id)
    with pytest.raises(penstock.NotTaken):
        task.ack()


def test_a_taken_task_object_cancels_while_its_lease_lives(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("a")
    first = take(tube)
    clock.advance(5)
    second = take(tube)
    with pytest.raises(penstock.NotTaken):
        tube.cancel(first)
    assert tube.cancel(second) is True
    assert second.status is penstock.Status.DONE


@pytest.mark.parametrize(("kind", "period"), [("round", 1), ("reliable", None)])
def test_kinds_without_leases_have_no_cancel(broker: penstock.Broker, kind: str, period: float | None) -> None:
    tube = broker.tube("t", kind=kind, period=period)
    with pytest.raises(penstock.UnsupportedOption, match=f"kind {kind} has no cancel"):
        tube.cancel("1-1")


def test_cancel_counts_in_the_group_of_the_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put("a")
    group.on_end("end")
    group.start()
    assert tube.cancel(1)
    assert group.wait(0) == "done"
    assert drain(tube) == ["end"]


def test_cancel_is_reported_as_delete(broker: penstock.Broker) -> None:
    tube, events = broker.tube("t"), list[tuple[int | str, str]]()
    tube.put("a")
    tube.on_change(lambda task, event: events.append((task.id, event)))
    tube.cancel(1)
    assert events == [(1, "delete")]
