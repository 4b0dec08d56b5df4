"""store.held: one call tells a worker which of its leases are lost, on every store (section 10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.core.results import Lease
from penstock.core.task import record_of
from penstock.testing import Clock
from tests.support.verbs import KINDS, take


def held(broker: penstock.Broker, *tasks: penstock.Task) -> list[bool]:
    """Whether the broker's own session holds these tasks."""
    tubes = {tube.name: broker.tube(tube.name).stored for tube in broker.tubes()}
    leases = [Lease(tubes[task.tube], task.id, record_of(task).lease) for task in tasks]
    return broker.runtime.store.held(broker.tube(tasks[0].tube).session_handle.number, leases)


def released(tube: penstock.Tube, task: penstock.Task) -> penstock.Tube:
    """The tube, with the task ready again."""
    task.release()
    return tube


LOSSES: dict[str, Callable[[penstock.Tube, penstock.Task], object]] = {
    "ack": lambda tube, task: task.ack(),
    "release": lambda tube, task: task.release(),
    "bury": lambda tube, task: tube.bury(task.id),
    "delete": lambda tube, task: tube.delete(task.id),
    "cancel": lambda tube, task: tube.cancel(task.id),
    "release_all": lambda tube, task: tube.release_all(),
    "taken again": lambda tube, task: take(released(tube, task)),
    "truncate": lambda tube, task: tube.truncate(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lost_leases_of_several_tubes_are_reported_together(broker: penstock.Broker, kind: str) -> None:
    tubes = [broker.tube(name, kind=kind) for name in "abc"]
    tasks = []
    for tube in tubes:
        tube.put("x")
        tasks.append(take(tube))
    assert held(broker, *tasks) == [True, True, True]
    tubes[1].delete(tasks[1].id)
    assert held(broker, *reversed(tasks)) == [True, False, True]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_lease_is_not_held(broker: penstock.Broker, loss: str) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    assert held(broker, task) == [True]
    LOSSES[loss](tube, task)
    assert held(broker, task) == [False]


def test_a_lease_is_held_until_its_deadline(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    task = take(tube)
    clock.advance(4.999)
    assert held(broker, task) == [True]
    clock.advance(0.001)
    assert held(broker, task) == [False]


def test_a_lease_with_progress_is_held(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    task.touch(1)
    assert held(broker, task) == [True]


def test_another_session_s_lease_is_not_held(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["x", "y"])
    own = take(tube)
    with broker.session() as session:
        other = session.take(["t"], 0)
        assert other is not None
        assert held(broker, own, other) == [True, False]


def test_the_tasks_of_a_cancelled_group_are_not_held(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put_many(range(3))
    group.start()
    task = take(tube)
    assert held(broker, task) == [True]
    group.cancel()
    assert held(broker, task) == [False]


def test_leases_of_a_dropped_tube_are_not_held(broker: penstock.Broker) -> None:
    tube, other = broker.tube("t"), broker.tube("u")
    tube.put("x")
    other.put("y")
    task, kept = take(tube), take(other)
    stored, session = tube.stored, tube.session_handle.number
    tube.delete(task.id)
    tube.drop()
    leases = [Lease(stored, task.id, record_of(task).lease), Lease(other.stored, kept.id, record_of(kept).lease)]
    assert broker.runtime.store.held(session, leases) == [False, True]
