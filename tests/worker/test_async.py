"""Async handlers run on one event loop, share its slots, and are cancelled when their lease is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import Clock
from penstock.worker.settings import Settings
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Start, Work, hold

Receive = Callable[[], object]
Send = Callable[[str], None]


def test_results_come_back(start: Start) -> None:
    handles = jobs.gather.put_many([([number, 1],) for number in range(50)])
    start()
    assert [handle.result(PATIENCE) for handle in handles] == [number + 1 for number in range(50)]


def test_a_waiting_handler_frees_its_slot(start: Start) -> None:
    handle = jobs.fibonacci_async.put(5)
    start("--concurrency", "1")
    assert handle.result(PATIENCE) == 5


def test_leases_are_extended_and_results_come_after_many_ttrs(
    app: App, clock: Clock, work: Work, receive: Receive, send: Send
) -> None:
    handle = jobs.hold_async.put("go")
    work(Settings(tubes=("async",)))
    assert receive() == ["began", "go"]
    until(lambda: app.broker.tube("async").stats().calls.touch >= 4)  # each by at least a third of its ttr
    clock.advance(2 * 1.5)
    assert app.broker.tube("async").take(0) is None
    send("go")
    assert handle.result(PATIENCE) == "go"


def test_a_lost_lease_cancels_the_coroutine(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.hold_async.put("never")
    worker = start("--grace", "0")
    assert receive() == ["began", "never"]
    worker.freeze()
    task = hold(app.broker.tube("async"))
    worker.signal(signal.SIGCONT)
    while receive() != ["cancelled", "never"]:  # a worker that was slow before it was frozen has started it again
        pass
    task.ack("mine")
    assert handle.wait(PATIENCE).result == "mine"


def test_the_end_of_the_grace_period_cancels_the_coroutine(app: App, start: Start, receive: Receive) -> None:
    handle = jobs.hold_async.options(ttr=60).put("never")
    worker = start("--grace", "0.1")
    assert receive() == ["began", "never"]
    assert worker.stop() == 0
    assert receive() == ["cancelled", "never"]
    task = app.broker.tube("async").peek(handle.id)
    assert (task.status, task.attempts, task.reason) == ("r", 1, "the worker stopped before the handler ended")


def test_a_waiting_that_would_block_the_loop_is_refused(app: App, start: Start) -> None:
    handle = jobs.block_the_loop.put()
    start("--concurrency", "1")
    with pytest.raises(penstock.TaskFailed, match="in an async handler use `async with`"):
        handle.wait(PATIENCE)
    assert jobs.gather.put([1, 2]).result(PATIENCE) == 3
