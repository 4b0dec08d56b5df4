"""A worker inside the program, on the memory store: how it prefetches and returns tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

import penstock
from penstock.app.app import App
from penstock.cli.worker_command import Signals, run
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import Description, Settled
from penstock.transfer.move import Move as Moving
from penstock.worker.console import Status
from penstock.worker.fetcher import Fetcher
from penstock.worker.running_task import RunningTask
from penstock.worker.settings import Settings
from penstock.worker.settlement import Settlement
from penstock.worker.worker import Worker
from tests.support.inspection import calls, tasks
from tests.support.threads import until


@pytest.fixture
def app() -> Iterator[App]:
    app = penstock.App(f"memory://{uuid4().hex}")
    yield app
    assert app.broker.check() == []
    app.close()


def test_many_tasks_are_settled_in_few_steps(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def noop(number: int) -> None: ...

    noop.put_many(range(5000))
    tube, store, acks = app.broker.tube("default"), app.broker.runtime.store, list[int]()
    settle = store.settle

    def counted(tube: Tube, moves: list[Move], *, brief: bool) -> Settled:
        acks.append(sum(move.verb == "ack" for move in moves))
        return settle(tube, moves, brief=brief)

    monkeypatch.setattr(store, "settle", counted)
    worker = Worker(app)
    worker.start()
    until(lambda: tube.stats().tasks.done == 5000, 120)
    worker.stop()
    assert sum(acks) == 5000
    assert len(acks) < 500


def test_a_task_prefetched_for_too_long_is_released_unstarted(app: App) -> None:
    """Fast tasks make it prefetch; then one blocks, and the tasks behind it are released for others."""
    block, entered = threading.Event(), threading.Event()

    @app.task
    def work(number: int) -> None:
        if number == 1000:
            entered.set()
            block.wait(120)

    tube = app.broker.tube("default")
    work.put_many(range(1200))
    worker = Worker(app, Settings(concurrency=1))
    worker.start()
    assert entered.wait(60)
    left = [(number, 0) for number in range(1002, 1201)]
    until(lambda: [(task.id, task.attempts) for task in tube.tasks("r", limit=1000)] == left)
    block.set()
    until(lambda: tube.stats().tasks.done == 1200)
    worker.stop()
    assert tasks(tube) == {"done": 1200}


def test_tubes_given_by_name_are_served_in_that_order(app: App) -> None:
    ran: list[str] = []

    @app.task(tube="later")
    def later() -> None:
        ran.append("later")

    @app.task(tube="urgent")
    def urgent() -> None:
        ran.append("urgent")

    later.put_many([()] * 3)
    urgent.put_many([()] * 3)
    worker = Worker(app, Settings(tubes=("urgent", "later"), concurrency=1))
    worker.start()
    until(lambda: len(ran) == 6)
    worker.stop()
    assert ran == ["urgent"] * 3 + ["later"] * 3


def test_other_tubes_are_left_alone(app: App) -> None:
    @app.task(tube="mine")
    def mine() -> None: ...

    @app.task(tube="other")
    def other() -> None: ...

    mine.put()
    other.put()
    worker = Worker(app, Settings(tubes=("mine",)))
    worker.start()
    until(lambda: tasks(app.broker.tube("mine")) == {"done": 1})
    worker.stop()
    assert calls(app.broker.tube("other")) == {"put": 1}


def test_a_failure_in_a_tube_without_delays_waits_in_the_worker(app: App) -> None:
    app.broker.tube("plain", kind="fifo")
    attempts: list[int] = []

    @app.task(tube="plain", max_attempts=3, backoff=penstock.Backoff(base=0.05, factor=1, jitter=0))
    def fail() -> None:
        attempts.append(penstock.current_task().attempts)
        raise ValueError("no")

    fail.put()
    worker = Worker(app)
    worker.start()
    until(lambda: app.broker.tube("plain").stats().tasks.buried == 1)
    worker.stop()
    assert attempts == [1, 2, 3]
    assert app.broker.tube("plain").peek(1).reason == "ValueError: no"


def test_a_handler_may_settle_its_task_itself(app: App) -> None:
    @app.task
    def work() -> str:
        penstock.current_task().ack("by hand")
        return "ignored"

    handle = work.put()
    worker = Worker(app)
    worker.start()
    assert handle.wait(60).result == "by hand"
    worker.stop()
    assert (app.broker.tube("default").stats().calls.ack, tasks(app.broker.tube("default"))) == (1, {"done": 1})


def test_a_result_that_cannot_be_kept_buries_the_task(app: App) -> None:
    @app.task
    def work() -> object:
        return object()

    handle = work.put()
    worker = Worker(app)
    worker.start()
    with pytest.raises(penstock.TaskFailed, match="its result cannot be kept"):
        handle.wait(60)
    worker.stop()
    assert app.broker.tube("default").peek(1).attempts == 1


def test_a_result_whose_own_code_fails_buries_the_task(app: App) -> None:
    class Model:
        def model_dump(self, mode: str) -> object:
            raise KeyError("dump")

    @app.task
    def work() -> object:
        return Model()

    handle = work.put()
    worker = Worker(app, Settings(concurrency=1))
    worker.start()
    with pytest.raises(penstock.TaskFailed, match="its result cannot be kept: KeyError: 'dump'"):
        handle.wait(60)
    worker.stop()


@pytest.mark.parametrize("executor", ["thread", "async"])
def test_an_exception_that_cannot_be_printed_is_a_failure_like_others(app: App, executor: str) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("text")

    def fail() -> None:
        raise Mute

    async def fail_async() -> None:
        raise Mute

    handler = app.task(max_attempts=1)(fail if executor == "thread" else fail_async)
    handler.put()
    tube, worker = app.broker.tube("default"), Worker(app, Settings(concurrency=1))
    worker.start()
    until(lambda: tube.stats().tasks.buried == 1)
    assert tube.peek(1).reason == "Mute"
    until(lambda: worker.state.in_flight.held == set())  # the slot is freed after the settle
    worker.stop(0)


def test_a_task_settled_before_it_starts_frees_its_place(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work() -> None: ...

    tube, worker = app.broker.tube("default"), Worker(app)
    settler, add = worker.state.settler, worker.state.settler.add

    def add_and_settle(item: RunningTask, settlement: Settlement) -> None:
        add(item, settlement)
        until(lambda: worker.state.stats.retried >= 1)

    monkeypatch.setattr(settler, "add", add_and_settle)
    tube.put("names no handler", max_attempts=5)
    worker.start()
    until(lambda: tube.stats().tasks.delayed == 1)
    worker.stop()
    assert worker.state.in_flight.held == set()


def test_a_worker_reopens_a_tube_that_was_dropped(app: App) -> None:
    block, entered, ran = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work(number: int) -> None:
        if number:
            ran.set()
        else:
            entered.set()
            block.wait(120)

    work.put(0)
    worker = Worker(app, Settings(concurrency=1))
    worker.start()
    assert entered.wait(60)
    app.broker.tube("default").truncate()
    app.broker.tube("default").drop()
    block.set()
    work.put(1)
    assert ran.wait(60)
    worker.stop()


def test_a_worker_continues_without_a_moved_tube(app: App, caplog: pytest.LogCaptureFixture) -> None:
    ran = threading.Event()

    @app.task(tube="going")
    def go() -> None: ...

    @app.task(tube="staying")
    def stay() -> None:
        ran.set()

    worker = Worker(app)
    worker.start()
    until(lambda: any("going" in session.waits for session in app.broker.sessions()))
    with penstock.connect(f"memory://{uuid4().hex}") as new:
        runtime = app.broker.runtime
        Moving(runtime, new.runtime.store, "redis://new", wait=0, on_progress=lambda *_: None).run(["going"])
        runtime.hint_waiters()
        until(lambda: "tube going has moved to redis://new" in caplog.text)
        stay.put()
        assert ran.wait(60)
    worker.stop()


def test_an_internal_error_of_the_worker_is_logged(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work() -> None: ...

    monkeypatch.setattr(Fetcher, "_take", lambda self: 1 / 0)
    worker, crashed = Worker(app), threading.Event()
    worker.state.on_crash = crashed.set
    worker.start()
    assert crashed.wait(60)
    worker.stop()


def test_a_store_that_is_lost_while_the_command_starts_does_not_end_the_worker(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def work() -> None: ...

    def unavailable() -> Description:
        raise penstock.StoreUnavailable("the server is away")

    worker, events = Worker(app), list[Any]()
    status, signals = Status(worker), SimpleNamespace(wait=lambda seconds: True)
    monkeypatch.setattr(worker, "start", lambda: monkeypatch.setattr(app.broker.runtime.store, "describe", unavailable))
    monkeypatch.setattr(worker, "stop", lambda: None)
    run(worker, cast(Signals, signals), status, events.append)
    assert [event["event"] for event in events] == ["working", "stopped"]


def test_threads_end_with_the_worker(app: App) -> None:
    @app.task
    def work(number: int) -> None: ...

    work.put_many(range(100))
    before = {*threading.enumerate()}  # with threads of other tests that are stuck by design
    worker = Worker(app)
    worker.start()
    until(lambda: tasks(app.broker.tube("default")) == {"done": 100})
    worker.stop()
    until(lambda: not [thread for thread in {*threading.enumerate()} - before if thread.name == "penstock-runner"])
