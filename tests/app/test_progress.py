"""Progress is stored by touch, belongs to one attempt, and is visible to everyone."""

from __future__ import annotations

import penstock
from penstock.core.lifecycle import Move
from penstock.core.task import record_of
from penstock.operations.store_ops import settle
from penstock.testing import Clock
from tests.support.verbs import take


def tell(tube: penstock.Tube, task: penstock.Task, extra: int, progress: float | None) -> None:
    owner, lease = record_of(task).owner, record_of(task).lease
    [after] = settle(tube.runtime, tube.stored, [Move("touch", task.id, owner, lease, extra, progress=progress)])
    assert after is not None


def test_progress_is_shown_until_the_task_returns(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    task = take(tube)
    assert (task.progress, tube.peek(1).progress) == (None, None)
    tell(tube, task, 0, 0.4)
    assert tube.peek(1).progress == 0.4
    tell(tube, task, 1000, None)  # more time, and no new progress
    assert tube.peek(1).progress == 0.4
    assert tube.peek(1).due == (task.due or 0) + 1
    assert [found.progress for found in tube.tasks("t")] == [0.4]
    tell(tube, task, 0, 1.0)
    assert [found.progress for found in tube.tasks()] == [1.0]
    task.release()
    assert tube.peek(1).progress is None
    assert (take(tube).progress, tube.peek(1).progress) == (None, None)


def test_a_lost_lease_reports_no_progress(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    task = take(tube)
    clock.advance(5)
    again = take(tube)
    owner, lease = record_of(task).owner, record_of(task).lease
    assert settle(tube.runtime, tube.stored, [Move("touch", 1, owner, lease, progress=0.4)]) == [None]
    assert tube.peek(1).progress is None
    tell(tube, again, 0, 0.5)
    assert tube.peek(1).progress == 0.5
    again.ack()


def test_the_callback_gets_the_event(broker: penstock.Broker) -> None:
    seen: list[float | None] = []
    tube = broker.tube("t")
    tube.put_many(["x", "y"])
    tube.on_change(lambda task, event: seen.append(task.progress))
    for share in (0.25, 0.5):
        tell(tube, take(tube), 0, share)
    assert seen == [None, 0.25, None, 0.5]
