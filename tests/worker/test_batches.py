"""Batch handlers: several tasks in one call, each settled separately (section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.app.handler import Handler
from penstock.testing import run_queued
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.conftest import STORES
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Run

Receive = Callable[[], object]
Send = Callable[[str], None]

every_store = pytest.mark.parametrize("url", STORES, indirect=True)
HANDLERS: dict[str, Handler[[int], Any, Any]] = {
    "thread": jobs.store_rows, "async": jobs.store_rows_async, "process": jobs.store_rows_process,
}  # fmt: skip
every_executor = pytest.mark.parametrize("executor", HANDLERS)


def rows_of(message: object) -> list[int]:
    """The rows of one call."""
    assert isinstance(message, list)
    assert message[0] == "batch"
    return list(message[1])


@every_store
def test_tasks_are_run_in_batches_and_each_has_its_result(app: App, run: Run, receive: Receive) -> None:
    handles = [jobs.store_rows.put(row) for row in range(12)]
    run("rows", concurrency=1)
    assert [handle.result(PATIENCE) for handle in handles] == [f"row {row}" for row in range(12)]
    assert [len(rows_of(receive())) for _ in range(3)] == [5, 5, 2]
    assert app.broker.tube("rows").stats().calls.ack == 12


@every_executor
def test_a_batch_has_no_single_current_task(app: App, run: Run, executor: str) -> None:
    handler = HANDLERS[executor]
    handle = handler.put(-6)
    run(handler.rules.tube)
    with pytest.raises(penstock.TaskFailed, match=r"this handler is given a batch: penstock.current_tasks\(\) lists"):
        handle.wait(PATIENCE)


@every_executor
def test_a_bad_row_does_not_take_the_others_with_it(app: App, run: Run, receive: Receive, executor: str) -> None:
    handler = HANDLERS[executor]
    handles = handler.put_many([1, 2, -1, 3])
    run(handler.rules.tube)
    tube = app.broker.tube(handler.rules.tube)
    until(lambda: handles[2].status == "buried", PATIENCE)
    assert [handle.result(PATIENCE) for handle in (handles[0], handles[1], handles[3])] == ["row 1", "row 2", "row 3"]
    assert rows_of(receive()) == [1, 2, -1, 3]
    assert sorted(row for _ in range(4) for row in rows_of(receive())) == [-1, 1, 2, 3]  # in the same attempt
    bad = tube.peek(handles[2].id)
    assert (bad.attempts, bad.reason) == (handler.rules.options["max_attempts"], "ValueError: a bad row")
    assert (tube.stats().calls.ack, tube.stats().tasks.buried) == (3, 1)


@every_executor
def test_the_error_of_a_batch_of_one_is_that_task_s(app: App, run: Run, receive: Receive, executor: str) -> None:
    handler = HANDLERS[executor]
    bad = handler.put(-1)
    run(handler.rules.tube)
    until(lambda: bad.status == "buried", PATIENCE)
    good = handler.put(1)
    assert good.result(PATIENCE) == "row 1"
    attempts = handler.rules.options["max_attempts"]
    assert attempts is not None
    assert [rows_of(receive()) for _ in range(attempts + 1)] == [*[[-1]] * attempts, [1]]  # one run in each attempt


@every_executor
def test_failures_fail_only_those(app: App, run: Run, executor: str) -> None:
    handler = HANDLERS[executor]
    handles = handler.options(max_attempts=1).put_many([1, 2, -2])
    run(handler.rules.tube)
    assert handles[1].wait(PATIENCE).status == "done"
    until(lambda: [handles[0].status, handles[2].status] == ["buried", "buried"], PATIENCE)
    tube = app.broker.tube(handler.rules.tube)
    assert [tube.peek(handles[place].id).reason for place in (0, 2)] == ["and this", "ValueError: this one"]


@every_executor
def test_a_signal_applies_to_the_whole_batch(app: App, run: Run, executor: str) -> None:
    handler = HANDLERS[executor]
    handles = handler.put_many([1, -3])
    run(handler.rules.tube)
    assert [handle.wait(PATIENCE).error for handle in handles] == ["all of them"] * 2


@every_executor
def test_a_list_of_the_wrong_length_is_ignored(app: App, run: Run, receive: Receive, executor: str) -> None:
    handler = HANDLERS[executor]
    handles = handler.put_many([1, -4])
    run(handler.rules.tube)
    assert [handle.result(PATIENCE) for handle in handles] == ["row 1", "row -4"]
    assert [len(rows_of(receive())) for _ in range(3)] == [2, 1, 1]


def test_a_dead_process_sends_nothing(app: App, run: Run) -> None:
    handles = jobs.store_rows_process.put_many([1, -5, 2])
    run("rows-process")
    assert [handles[place].result(PATIENCE) for place in (0, 2)] == ["row 1", "row 2"]
    until(lambda: handles[1].status == "buried", PATIENCE)
    task = app.broker.tube("rows-process").peek(handles[1].id)
    assert (task.attempts, task.reason) == (1, "its process died: signal 11")


def test_a_raw_put_that_does_not_fit_does_not_harm_the_others(app: App, run: Run) -> None:
    tube = app.broker.tube("rows")
    handle = jobs.store_rows.put(1)
    bad = tube.put({"task": "store_rows", "args": {"rows": "three"}}, max_attempts=1)
    run("rows")
    assert handle.result(PATIENCE) == "row 1"
    until(lambda: tube.peek(bad.id).status == "!", PATIENCE)


def test_a_batch_larger_than_the_slots_is_filled(app: App, run: Run, receive: Receive) -> None:
    jobs.hold_rows.put_many([str(number) for number in range(60)])
    run("rows", concurrency=2)
    assert receive() == ["holding", 60]
    app.broker.tube("rows").truncate()


def test_one_lost_lease_of_a_batch_is_reported_and_the_others_finish(app: App, run: Run, receive: Receive) -> None:
    handles = jobs.hold_rows.put_many(["a", "b"])
    run("rows")
    assert receive() == ["holding", 2]
    handles[1].cancel()
    assert receive() == ["lost", [False, True]]
    until(lambda: handles[0].status == "gone", PATIENCE)
    assert handles[1].status == "cancelled"


def test_the_time_limit_of_a_batch_in_a_thread(app: App, run: Run, send: Send) -> None:
    handles = jobs.hang_rows.put_many(["x", "y"])
    worker = run("rows")
    tube = app.broker.tube("rows")
    until(lambda: tube.stats().tasks.buried == 2, PATIENCE)
    assert {tube.peek(handle.id).reason for handle in handles} == {"timed out after 0.2 s"}
    send("x")
    send("y")
    until(lambda: worker.state.stats.stuck == 0, PATIENCE)


def test_a_stop_releases_what_still_runs(app: App) -> None:
    @app.task(tube="rows", batch=5, linger=0.9, name="lingering")
    def lingering(rows: list[int]) -> None: ...

    try:
        lingering.put(1)
        worker = Worker(app, Settings(tubes=("rows",)))
        worker.start()
        until(lambda: worker.state.stats.taken == 1, PATIENCE)
        worker.stop(0)
        [task] = app.broker.tube("rows").tasks()
        assert (task.status, task.attempts) == ("r", 0)
    finally:
        del app.handlers["lingering"]


def test_run_queued_runs_them_one_by_one(app: App, receive: Receive) -> None:
    handles = [jobs.store_rows.put(1), jobs.store_rows.put(2)]
    assert run_queued(app) == 2
    assert [handle.result(0) for handle in handles] == ["row 1", "row 2"]
    jobs.store_rows.put(-1)
    with pytest.raises(ValueError, match="a bad row"):
        run_queued(app)


def test_what_does_not_fit_is_refused(app: App) -> None:
    own = penstock.App()

    def two(rows: list[int], more: int) -> None: ...
    def one(rows: list[int]) -> None: ...
    def plain(rows: int) -> None: ...

    with pytest.raises(penstock.BadValue, match="one parameter"):
        own.task(batch=3)(two)  # type: ignore[arg-type]
    for bad in (0, 1001):
        with pytest.raises(penstock.BadValue, match="batch"):
            own.task(batch=bad)(one)
    with pytest.raises(penstock.BadValue, match="linger"):
        own.task(batch=3, linger=-1)(one)
    with pytest.raises(penstock.BadValue, match="give batch="):
        own.task(linger=1)(one)  # type: ignore[call-overload]
    with pytest.raises(penstock.BadValue, match="annotate it as list"):
        own.task(batch=3)(plain).put(1)  # type: ignore[arg-type,call-overload]
    with pytest.raises(penstock.BadValue, match="Expected `int`"):
        jobs.store_rows.put("x")  # type: ignore[call-overload]
    with pytest.raises(penstock.BadValue, match="indexes and exceptions"):
        penstock.Failures({0: "no"})  # type: ignore[dict-item]
