"""A running handler learns of a lost lease within a second, however it was lost, on every store (section 10)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import pytest

import penstock
from penstock.app.app import App
from penstock.core.results import Lease
from penstock.worker import lease_extender
from tests.conftest import STORES
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Run

Receive = Callable[[], object]
Send = Callable[[str], None]

every_store = pytest.mark.parametrize("url", STORES, indirect=True)

LOSSES: dict[str, tuple[Callable[[penstock.Tube, int], object], list[str]]] = {
    "cancel": (lambda tube, id: tube.cancel(id), ["Cancelled", "cancelled"]),
    "delete": (lambda tube, id: tube.delete(id), ["Cancelled", "deleted"]),
    "bury": (lambda tube, id: tube.bury(id), ["Cancelled", "buried"]),
    "truncate": (lambda tube, id: tube.truncate(), ["Cancelled", "deleted"]),
}


@every_store
@pytest.mark.parametrize("loss", LOSSES)
def test_a_thread_is_notified_of_its_lost_lease(app: App, run: Run, receive: Receive, loss: str) -> None:
    handle = jobs.watch_lease.put()
    worker = run("watched")
    assert receive() == ["began", 1]
    lose, message = LOSSES[loss]
    assert lease_extender.CHECK < 1
    lose(app.broker.tube("watched"), handle.id)
    assert receive() == [*message, 1]
    until(lambda: not worker.state.in_flight.held)
    assert app.broker.tube("watched").stats().calls.ack == 0


@every_store
def test_a_released_task_is_not_started_again_while_its_handler_runs(
    app: App, run: Run, receive: Receive, send: Send
) -> None:
    tube = app.broker.create_tube("watched", "fifottl")
    jobs.linger.put("end")
    run("watched")
    assert receive() == ["began", 1]
    assert tube.release_all() == 1
    until(lambda: tube.stats().calls.take >= 2, PATIENCE)
    until(lambda: tube.tasks("~") != [], PATIENCE)
    assert tube.tasks()[0].attempts == 1  # an attempt that was not started does not count
    send("end")
    assert receive() == "ended"
    began = receive()
    assert isinstance(began, list)
    assert began[0] == "began"
    assert began[1] > 2
    send("end")
    assert receive() == "ended"
    until(lambda: tube.stats().calls.ack == 1, PATIENCE)


@every_store
def test_release_all_is_reported(app: App, run: Run, receive: Receive) -> None:
    jobs.watch_lease.put()
    run("watched")
    assert receive() == ["began", 1]
    app.broker.tube("watched").release_all()
    assert receive() == ["LeaseLost", "released", 1]


@every_store
def test_the_cancel_of_a_group_is_reported(app: App, run: Run, receive: Receive) -> None:
    group = app.broker.tube("watched").group("g")
    jobs.watch_lease.options(group="g").put()
    group.start()
    run("watched")
    assert receive() == ["began", 1]
    group.cancel()
    assert receive() == ["Cancelled", "cancelled", 1]


@every_store
def test_a_lapsed_session_is_reported(app: App, run: Run, receive: Receive) -> None:
    jobs.watch_lease.put()
    worker = run("watched")
    assert receive() == ["began", 1]
    app.broker.runtime.store.leave([worker.session_handle.handle])  # as a peer that finds it dead does
    assert receive() == ["LeaseLost", "lapsed", 1]


def test_a_coroutine_is_cancelled(app: App, run: Run, receive: Receive) -> None:
    handle = jobs.watch_lease_async.put()
    run("async")
    assert receive() == ["began", 1]
    assert app.broker.tube("async").cancel(handle.id)
    assert receive() == ["Cancelled", "cancelled", 1]


def test_a_process_is_killed(app: App, run: Run, receive: Receive) -> None:
    handle = jobs.watch_lease_process.put("")
    run("processes")
    message = receive()
    assert isinstance(message, list)
    app.broker.tube("processes").delete(handle.id)
    until(lambda: not os.path.exists(f"/proc/{message[1]}"), PATIENCE)


def test_one_store_call_a_second_and_none_while_nothing_runs(
    app: App, run: Run, receive: Receive, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    store = app.broker.runtime.store
    held = store.held

    def counted(session: int, leases: Sequence[Lease]) -> list[bool]:
        asked.append(len(leases))
        return held(session, leases)

    monkeypatch.setattr(store, "held", counted)
    for _ in range(3):
        jobs.linger.put("end")
    run("watched")
    assert [receive() for _ in range(3)] == [["began", 1]] * 3
    time.sleep(2)
    assert asked[-1] == 3
    assert 1 <= len(asked) <= 3
    for _ in range(3):
        send("end")
    assert [receive() for _ in range(3)] == ["ended"] * 3
    seen = len(asked)
    time.sleep(1.2)
    assert len(asked) <= seen + 1  # one may have been in flight


def test_many_lost_leases_cost_a_few_store_calls(
    app: App, run: Run, receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    store = app.broker.runtime.store
    for name in ("get", "outcomes", "groups", "sessions"):
        monkeypatch.setattr(store, name, _counted(getattr(store, name), name, asked))
    for _ in range(8):
        jobs.watch_lease.put()
    run("watched")
    assert [receive() for _ in range(8)] == [["began", 1]] * 8
    asked.clear()
    app.broker.tube("watched").truncate()
    assert [receive() for _ in range(8)] == [["Cancelled", "deleted", 1]] * 8
    assert len(asked) <= 4  # the truncate may have come between two checks


def _counted(call: Callable[..., object], name: str, asked: list[str]) -> Callable[..., object]:
    def counted(*args: object, **options: object) -> object:
        asked.append(name)
        return call(*args, **options)

    return counted


def test_a_handler_that_settles_its_own_task_has_not_lost_it(app: App, run: Run, receive: Receive) -> None:
    @app.task(tube="watched", name="settle_itself")
    def settle_itself() -> None:
        task = penstock.current_task()
        task.ack()
        time.sleep(1.5)
        jobs.report_event(["lost", task.lost])

    settle_itself.put()
    try:
        run("watched")
        assert receive() == ["lost", False]
    finally:
        del app.handlers["settle_itself"]
