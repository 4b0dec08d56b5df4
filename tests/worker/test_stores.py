"""A worker on each server: tasks run, failures are buried, unstarted tasks are released."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.app.app import App
from tests.servers import SERVERS
from tests.support.inspection import tasks
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Start

pytestmark = pytest.mark.parametrize("url", SERVERS, indirect=True)


def test_tasks_run_and_failures_are_buried(app: App, start: Start) -> None:
    jobs.noop.put_many(range(500))
    jobs.fail.put("no such user")
    worker = start()
    tube = app.broker.tube("default")
    until(lambda: tasks(tube) == {"done": 500, "buried": 1, "total": 1}, PATIENCE)
    [buried] = tube.tasks("!")
    assert (buried.attempts, buried.reason) == (3, "ValueError: no such user")
    assert tube.stats().calls.ack == 500
    assert worker.stop() == 0


def test_a_killed_worker_s_task_is_run_by_another(app: App, start: Start, receive: Callable[[], object]) -> None:
    jobs.die.put()
    first = start()
    assert receive() == ["dying", 1]
    first.wait()
    start()
    assert receive() == ["dying", 2]
    until(lambda: tasks(app.broker.tube("default")) == {"buried": 1, "total": 1}, PATIENCE)


def test_a_stop_releases_what_was_not_started(app: App, start: Start) -> None:
    jobs.noop.put_many(range(3000))
    worker = start("--concurrency", "1")
    tube = app.broker.tube("default")
    until(lambda: tube.stats().tasks.done > 0, PATIENCE)
    assert worker.stop() == 0
    left = tube.tasks(limit=10_000)
    assert all((task.status, task.attempts) == ("r", 0) for task in left)
    assert tube.stats().tasks.done + len(left) == 3000
