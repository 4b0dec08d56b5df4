"""A worker that is stopped once or twice, killed, or frozen: nothing is lost, and the log explains everything."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

from penstock.app.app import App
from tests.support.inspection import calls, tasks
from tests.support.peer import environment
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Start, hold

Receive = Callable[[], object]
Send = Callable[[str], None]


def test_a_stop_waits_for_running_tasks_and_releases_the_others(
    app: App, start: Start, receive: Receive, send: Send
) -> None:
    first, second = jobs.hold.put("one"), jobs.hold.put("two")
    worker = start("--concurrency", "1")
    assert receive() == ["began", "one", worker.pid]
    worker.signal()
    worker.await_log("stopping")
    send("one")
    assert worker.wait() == 0
    assert first.wait(0).result == "one"
    task = app.broker.tube("slow").peek(second.id)
    assert (task.status, task.attempts) == ("r", 0)


def test_after_the_grace_the_rest_is_released(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.hold.put("never")
    worker = start("--grace", "0.2")
    assert receive() == ["began", "never", worker.pid]
    assert worker.stop() == 0
    task = app.broker.tube("slow").peek(handle.id)
    assert (task.status, task.attempts, task.reason) == ("r", 1, "the worker stopped before the handler ended")
    assert worker.pid not in [session.pid for session in app.broker.sessions()]


def test_a_second_signal_releases_at_once(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.hold.put("never")
    worker = start("--grace", "60")
    assert receive() == ["began", "never", worker.pid]
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert app.broker.tube("slow").peek(handle.id).status == "r"


def test_two_signals_at_once_are_both_noticed() -> None:
    """Otherwise the main thread would sleep until its next regular check."""
    program = """
from penstock.cli.worker_command import Signals
for _ in range(5):
    signals = Signals()
    print("asleep", flush=True)
    assert signals.wait(600)
    assert signals.hurry.wait(600)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment())
    assert child.stdout is not None
    for _ in range(5):
        assert child.stdout.readline() == b"asleep\n"
        for number in (signal.SIGINT, signal.SIGTERM):
            child.send_signal(number)
    assert child.wait(PATIENCE) == 0
    child.stdout.close()


def test_an_idle_worker_stops_at_once(app: App, start: Start) -> None:
    worker = start("--grace", "600")
    until(lambda: any(session.waits for session in app.broker.sessions()), PATIENCE)
    assert worker.stop() == 0
    assert app.broker.sessions() == []


def test_prefetched_tasks_of_a_stopped_worker_have_no_attempt(
    app: App, start: Start, receive: Receive, send: Send
) -> None:
    """Fast tasks make it prefetch; tasks behind a slow one are released without an attempt."""
    app.broker.tube("default")
    jobs.noop.put_many(range(2000))
    worker = start("--concurrency", "1")
    until(lambda: app.broker.tube("default").stats().tasks.done > 0)
    assert worker.stop() == 0
    left = app.broker.tube("default").tasks(limit=10_000)
    assert all((task.status, task.attempts) == ("r", 0) for task in left)
    assert calls(app.broker.tube("default")).get("ttr") is None
    assert tasks(app.broker.tube("default"))["done"] + len(left) == 2000


def test_the_tasks_of_a_killed_worker_are_run_by_another(app: App, start: Start, receive: Receive, send: Send) -> None:
    handle = jobs.hold.put("one")
    first = start()
    assert receive() == ["began", "one", first.pid]
    second = start()
    until(lambda: any(session.pid == second.pid for session in app.broker.sessions()), PATIENCE)
    beat = max(session.heartbeat for session in app.broker.sessions() if session.pid == first.pid)
    first.kill()
    assert receive() == ["began", "one", second.pid]
    assert (app.broker.tube("slow").peek(handle.id).taken or 0) < beat + 15  # when its heartbeat would have reported it
    send("one")
    assert handle.result(PATIENCE) == "one"


def test_a_task_that_kills_its_worker_ends_buried(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.die.put()
    for attempt in (1, 2):
        worker = start()
        assert receive() == ["dying", attempt]
        assert worker.wait() == -signal.SIGKILL
    until(lambda: app.broker.tube("default").peek(handle.id).status == "!")
    assert app.broker.tube("default").peek(handle.id).reason == "handed out 2 times without an ack"


def test_a_lost_lease_is_logged_and_its_result_dropped(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.outlive.put()
    worker = start()
    assert receive() == ["began", 1]
    worker.freeze()
    task = hold(app.broker.tube("slow"))  # its ttr is over
    worker.signal(signal.SIGCONT)
    newest = 1
    while (message := receive()) != ["lost", newest, True]:  # a worker that was slow before the freeze started it again
        assert isinstance(message, list)
        newest = max(newest, message[1])
    assert newest < task.lease
    worker.await_log("lost the lease of")
    task.ack("mine")
    assert handle.wait(PATIENCE).result == "mine"
    assert worker.stop() == 0


def test_two_workers_share_the_work_and_run_nothing_twice(app: App, start: Start) -> None:
    workers = [start(), start()]
    handles = jobs.echo.put_many(range(300))
    assert [handle.result(PATIENCE) for handle in handles] == list(range(300))
    stats = app.broker.tube("default").stats()
    assert (stats.calls.ack, stats.calls.ttr) == (300, 0)
    assert [worker.stop() for worker in workers] == [0, 0]
