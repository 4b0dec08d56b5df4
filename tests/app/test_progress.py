"""Progress goes to the store with touch, belongs to one hand-out, and is seen by everybody."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.lifecycle import Move
from tests.behaviour.helpers import take

# The stores that keep it; the others take the touch and leave the rest.
pytestmark = pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)


def tell(tube: penstock.Tube, task: penstock.Task, extra: int, progress: float | None) -> None:
    owner, lease = task._record.owner, task._record.lease
    [after] = tube._settle_now([Move("touch", task.id, owner, lease, extra, progress=progress)])
    assert after is not None


def test_it_is_seen_until_the_task_comes_back(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    task = take(tube)
    assert (task.progress, tube.peek(1).progress) == (None, None)
    tell(tube, task, 0, 0.4)
    assert tube.peek(1).progress == 0.4
    tell(tube, task, 1000, None)  # more time, and nothing new to tell
    assert tube.peek(1).progress == 0.4
    assert tube.peek(1).due == (task.due or 0) + 1
    task.release()
    assert tube.peek(1).progress is None
    assert take(tube).progress is None
