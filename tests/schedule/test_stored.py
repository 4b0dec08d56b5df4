"""Schedules as data: set, listed and deleted by any program, put by any worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

import penstock
from penstock.app.app import App
from penstock.app.schedules import declared
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.schedule.scheduler import Scheduler
from penstock.testing import Clock
from tests.schedule.test_ticks import runs, scheduler
from tests.support.threads import until


def test_schedules_are_set_listed_and_deleted(app: App, clock: Clock) -> None:
    @app.task(tube="mail", ttr=30)
    def send(to: str, subject: str = "hi") -> None: ...

    @app.cron("0 3 * * *", timezone="Europe/Berlin")
    def nightly() -> None: ...

    app.schedules.set("ada", "*/5 * * * *", send.call("ada@example.org", subject="x"), timezone="Europe/Berlin")
    app.schedules.set("bob", timedelta(seconds=90), send.options(pri=5).call("bob@example.org"), catch_up="one")
    ada, bob, own = app.schedules.list()
    assert isinstance(ada, penstock.Schedule)
    assert (ada.name, ada.when, ada.task, ada.timezone, ada.paused) == (
        "ada", "*/5 * * * *", "send", "Europe/Berlin", False,
    )  # fmt: skip
    assert ada.args == {"to": "ada@example.org", "subject": "x"}
    assert ada.next is not None
    assert ada.next % 300 == 0
    assert clock.seconds < ada.next <= clock.seconds + 300
    assert (bob.name, bob.when, bob.timezone) == ("bob", 90, None)
    assert (own.name, own.when, own.args, own.timezone) == ("nightly", "0 3 * * *", {}, "Europe/Berlin")
    app.schedules.set("ada", 60, send.call("ada@example.org"))
    assert [each.when for each in app.schedules.list()] == [60, 90, "0 3 * * *"]
    app.schedules.delete("ada")
    with pytest.raises(penstock.NotFound, match="ada"):
        app.schedules.delete("ada")
    assert [each.name for each in app.schedules.list()] == ["bob", "nightly"]


def test_bad_schedules_are_refused(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    @app.every(5)
    def own() -> None: ...

    call = send.call("x")
    for name, when, what, options in (
        ("", 5, call, {}), ("a", "x", call, {}), ("a", 0, call, {}), ("a", True, call, {}), ("a", None, call, {}),
        ("a", "* * * * *", call, {"timezone": "Nowhere"}), ("a", 5, call, {"timezone": "UTC"}),
        ("a", 5, call, {"catch_up": "some"}), ("a", 5, call, {"overlap": 2}), ("a", 5, send, {}),
        ("a", 5, call.options(delay=5), {}), ("own", 5, call, {}),
    ):  # fmt: skip
        with pytest.raises(penstock.BadValue):
            app.schedules.set(name, when, what, **options)  # type: ignore[arg-type]
    with pytest.raises((TypeError, penstock.BadValue)):
        app.schedules.set("a", 5, send.call("x", "y"))  # type: ignore[call-overload]
    with pytest.raises(penstock.BadValue, match="decorator"):
        app.schedules.delete("own")
    assert [each.name for each in app.schedules.list()] == ["own"]


def test_a_name_of_another_programs_decorator_is_refused(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    other = App()
    other.connection._broker = app.broker

    @other.every(5)
    def theirs() -> None: ...

    schedule_status.save(app.broker.tube(SCHEDULE_TUBE), [declared(other.schedules)[0].record(app.broker.tube("t"))])
    with pytest.raises(penstock.BadValue, match="decorator"):
        app.schedules.set("theirs", 5, send.call("x"))
    with pytest.raises(penstock.BadValue, match="decorator"):
        app.schedules.delete("theirs")


def test_set_and_delete_do_not_read_the_other_schedules(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def send(to: str) -> None: ...

    reads: list[object] = []
    monkeypatch.setattr(penstock.Tube, "tasks", lambda *given, **options: reads.append(given))
    app.schedules.set("ada", 5, send.call("x"))
    app.schedules.set("ada", 6, send.call("x"))
    app.schedules.delete("ada")
    assert reads == []


def test_any_worker_puts_them_with_their_arguments(app: App, clock: Clock) -> None:
    @app.task(tube="mail", pri=9)
    def send(to: str) -> str:
        return to

    app.schedules.set("ada", 2, send.call("ada@example.org"))
    workers = [scheduler(app), scheduler(app)]
    for worker in workers:
        worker.put_due()
    clock.advance(5)
    tube = app.broker.tube("mail")
    task = tube.take(0)
    assert task is not None
    assert isinstance(task.data, dict)
    assert (task.data["task"], task.data["args"], task.pri) == ("send", {"to": "ada@example.org"}, 9)
    task.ack()
    assert len(runs(tube)) == 1


def test_workers_that_notice_a_change_one_after_the_other_lose_no_tick(app: App, clock: Clock) -> None:
    @app.task(tube="mail")
    def send(to: str) -> None: ...

    mail, workers = app.broker.tube("mail"), [scheduler(app), scheduler(app)]
    app.schedules.set("ada", 2, send.call("ada"))
    for worker in workers:
        worker.put_due()
    app.schedules.set("ada", 2, send.call("eve"))
    for worker in workers:
        worker._read_at = 0.0  # as a worker's clock notices within a second
        worker.put_due()
        assert [task.data["args"] for task in mail.tasks("~") if isinstance(task.data, dict)] == [{"to": "eve"}] * 2
    clock.advance(5)
    assert len(runs(mail)) == 2


def test_operators_pause_run_and_forget_stored_schedules(app: App, clock: Clock) -> None:
    @app.task(tube="mail")
    def send(to: str) -> None: ...

    app.schedules.set("ada", 2, send.call("ada@example.org"))
    saved, mail, worker = app.broker.tube(SCHEDULE_TUBE), app.broker.tube("mail"), scheduler(app)
    key = schedule_status.key_of(saved, "ada")
    schedule_status.pause(saved, key)
    assert [(each.paused, each.next) for each in app.schedules.list()] == [(True, None)]
    worker.put_due()
    schedule_status.run_now(saved, key)
    assert mail.stats().tasks.total == 1
    schedule_status.resume(saved, key)
    worker.put_due()
    assert mail.stats().tasks.delayed == 2
    schedule_status.forget(saved, key)
    worker._read_at = 0.0  # as a worker's clock notices within a second
    worker.put_due()
    assert mail.stats().tasks.delayed == 0
    assert app.schedules.list() == []


def _thread(name: str, run: Callable[[], None]) -> threading.Thread:
    return threading.Thread(name=name, target=run, daemon=True)


def test_a_running_worker_notices_changes_within_a_second(store_url: str) -> None:
    with closing(App(store_url)) as other, closing(App(store_url)) as app:

        @app.task(tube="mail")
        def send(to: str) -> None: ...

        mail = app.broker.tube("mail")
        working = Scheduler(other.broker, declared(other.schedules), _thread)
        other.broker.runtime.start_background()
        working.start()
        try:
            app.schedules.set("ada", 0.3, send.call("ada"))
            until(lambda: mail.stats().calls.put >= 3)
            app.schedules.set("ada", 3600, send.call("eve"))
            until(lambda: mail.stats().tasks.delayed <= 1)  # earlier ticks are withdrawn
            app.schedules.delete("ada")
            until(lambda: mail.stats().tasks.delayed == 0)
        finally:
            working.stop()
