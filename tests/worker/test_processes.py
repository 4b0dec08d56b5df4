"""Handlers in separate processes: results, crashes, a kill at the ttr, and no orphans."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

import penstock
from penstock.app.app import App
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Start, Work

Receive = Callable[[], object]
Send = Callable[[str], None]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def receive_pid(receive: Receive) -> int:
    message = receive()
    assert isinstance(message, list)
    return int(message[-1])


def test_results_come_back_from_other_processes(start: Start) -> None:
    handles = jobs.square.put_many(range(6))
    worker = start("--processes", "2")
    results = [handle.result(PATIENCE) for handle in handles]
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25]
    pids = {pid for _, pid in results}
    assert worker.pid not in pids
    assert len(pids) <= 2


def test_a_handler_is_killed_at_its_ttr(app: App, work: Work) -> None:
    work(Settings(tubes=("processes",), processes=1))
    pid = jobs.square.put(2).result(PATIENCE)[1]
    handle = jobs.spin.put()
    until(lambda: app.broker.tube("processes").peek(handle.id).status == "!", PATIENCE)
    assert app.broker.tube("processes").peek(handle.id).reason == "its process was killed at its ttr of 0.5 s"
    until(lambda: not alive(pid))
    square, other = jobs.square.put(3).result(PATIENCE)
    assert (square, other != pid) == (9, True)  # a new process has replaced it


@pytest.mark.parametrize(
    ("how", "attempts", "reason"),
    [
        ("die", 2, "its process died: signal 11"),
        ("raise", 2, "ValueError: caf?"),
        ("bury", 1, "enough"),
        ("percent", 2, "BadValue: progress 40 is out of range: give a share, from 0 to 1"),
    ],
)
def test_a_crash_is_an_attempt_with_its_reason(app: App, start: Start, how: str, attempts: int, reason: str) -> None:
    handle = jobs.crash.put(how)
    start("--processes", "1")
    until(lambda: app.broker.tube("processes").peek(handle.id).status == "!", PATIENCE)
    task = app.broker.tube("processes").peek(handle.id)
    assert (task.attempts, task.reason) == (attempts, reason)


def test_progress_is_reported_from_other_processes(start: Start, receive: Receive, send: Send) -> None:
    handle = jobs.hold_process.put("go")
    start("--processes", "1")
    receive_pid(receive)
    until(lambda: handle.progress == 0.25)
    send("go")
    assert handle.result(PATIENCE) == "go"


def test_a_waiting_handler_makes_room_for_another_process(start: Start) -> None:
    handle = jobs.fibonacci_process.put(3)
    start("--processes", "1")
    assert handle.result(PATIENCE) == 2


def test_no_process_outlives_its_killed_worker(app: App, start: Start, receive: Receive, send: Send) -> None:
    handle = jobs.hold_process.put("go")
    worker = start("--processes", "1")
    pid = receive_pid(receive)
    worker.kill()
    until(lambda: not alive(pid))
    start("--processes", "1")
    assert receive_pid(receive) != pid
    send("go")
    assert handle.result(PATIENCE) == "go"


def test_the_end_of_the_grace_period_kills_the_process(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.hold_process.put("never")
    worker = start("--grace", "0.1")
    pid = receive_pid(receive)
    assert worker.stop() == 0
    assert not alive(pid)
    task = app.broker.tube("processes").peek(handle.id)
    assert (task.status, task.reason) == ("r", "the worker stopped before the handler ended")


def test_a_function_that_no_process_could_import_is_refused(url: str) -> None:
    app = penstock.App(url)

    @app.task(executor="process")
    def inside() -> None: ...

    with pytest.raises(penstock.BadValue, match=r"cannot import tests\.worker.*<locals>"):
        Worker(app)
    app.close()


def test_a_process_that_cannot_be_started_is_a_failure_like_others(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    handle = jobs.square.options(max_attempts=1).put(3)
    worker = Worker(app, Settings(tubes=("processes",), concurrency=1))
    worker.start()
    with pytest.raises(penstock.TaskFailed, match="FileNotFoundError"):
        handle.wait(PATIENCE)
    worker.stop()
    assert worker.state.slots.running == 0


def test_a_process_killed_while_it_waits_leaves_the_slots_unchanged(app: App, start: Start) -> None:
    tube = app.broker.tube("processes")
    for _ in range(3):
        jobs.wait_forever.put()
    start("--processes", "1", "--concurrency", "1")
    until(lambda: tube.stats().tasks.buried == 3, PATIENCE)
    assert jobs.square.put(3).result(PATIENCE)[0] == 9
