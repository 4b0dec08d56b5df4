"""A worker process runs what is put: results, failures, retries, and outcomes."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import Clock
from penstock.worker.settings import Settings
from tests.support.inspection import tasks
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Start, Work

Receive = Callable[[], object]
Send = Callable[[str], None]


def test_results_come_back(app: App, start: Start) -> None:
    handles = jobs.echo.put_many(range(50))
    start()
    assert [handle.result(PATIENCE) for handle in handles] == list(range(50))
    assert tasks(app.broker.tube("default")) == {"done": 50}


def test_a_function_annotated_to_give_nothing_keeps_nothing(app: App, start: Start) -> None:
    handle = jobs.noop.put(1)
    assert app.broker.tube("default").peek(handle.id).address is None
    start()
    outcome = handle.wait(PATIENCE)
    assert outcome.status in ("done", "gone")  # gone: it ended before the wait began
    assert outcome.result is None
    assert handle.status == "gone"


def test_a_task_that_used_up_its_attempts_is_buried_with_its_last_error(
    app: App, start: Start, receive: Receive
) -> None:
    handle = jobs.fail.put("no such user")
    start()
    assert [receive() for _ in range(3)] == [["attempt", 1], ["attempt", 2], ["attempt", 3]]
    with pytest.raises(penstock.TaskFailed, match="is buried: ValueError: no such user"):
        handle.wait(PATIENCE)
    task = app.broker.tube("default").peek(handle.id)
    assert (task.status, task.attempts, task.reason) == ("!", 3, "ValueError: no such user")


def test_retry_releases_the_task_and_counts_the_attempt(start: Start) -> None:
    handle = jobs.retry_until.put(4)
    start()
    assert handle.result(PATIENCE) == 4


def test_bury_buries_the_task_at_once(app: App, start: Start) -> None:
    handle = jobs.bury.put("nobody knows how")
    start()
    until(lambda: app.broker.tube("default").peek(handle.id).status == "!")
    task = app.broker.tube("default").peek(handle.id)
    assert (task.attempts, task.reason) == (1, "nobody knows how")


def test_an_unknown_name_imports_nothing_and_is_buried_in_the_end(app: App, start: Start) -> None:
    tube = app.broker.tube("default")
    app.broker.tube("default")
    task = tube.put({"task": "os.getcwd", "args": {}}, max_attempts=1)
    nameless = tube.put("no dict at all", max_attempts=1)
    worker = start()
    until(lambda: tube.stats().tasks.buried == 2)
    assert tube.peek(task.id).reason == "the worker that took it has no handler named 'os.getcwd'"
    assert tube.peek(nameless.id).reason is not None
    worker.await_log("no handler named 'os.getcwd'")


def test_a_task_whose_arguments_do_not_fit_is_buried(app: App, start: Start) -> None:
    tube = app.broker.tube("default")
    task = tube.put({"task": "echo", "args": {"value": "three"}})
    start()
    until(lambda: tube.peek(task.id).status == "!")
    assert tube.peek(task.id).reason == (
        "BadValue: an argument of echo does not fit: Expected `int`, got `str` - at `$.value`"
    )


def test_progress_is_seen_while_the_handler_runs(start: Start, receive: Receive, send: Send) -> None:
    handle = jobs.report.put("go")
    assert handle.progress is None
    start()
    assert receive() == ["began", "go"]
    until(lambda: handle.progress == 0.4)
    send("go")
    assert handle.wait(PATIENCE).status in ("done", "gone")  # gone: it ended before the wait began
    assert handle.progress is None


def test_a_waiting_handler_frees_its_slot(start: Start) -> None:
    handle = jobs.fibonacci.put(6)
    start("--concurrency", "1")
    assert handle.result(PATIENCE) == 8


def test_leases_are_extended_while_handlers_run(
    app: App, clock: Clock, work: Work, receive: Receive, send: Send
) -> None:
    handle = jobs.hold_leased.put("go")
    work(Settings(tubes=("slow",)))
    assert receive() == ["began", "go", os.getpid()]
    slow = app.broker.tube("slow")
    until(lambda: slow.stats().calls.touch >= 4)  # each by at least a third of its ttr
    clock.advance(2 * 1.5)
    assert slow.take(0) is None
    send("go")
    assert handle.result(PATIENCE) == "go"
    assert slow.stats().calls.ttr == 0
