"""Status of schedules: what operators see, and what pausing and running by hand do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import penstock
from penstock.app.app import App
from penstock.app.schedules import declared
from penstock.core.task import record_of
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.schedule.scheduler import Scheduler
from penstock.testing import Clock
from tests.schedule.test_ticks import runs


def scheduler(app: App) -> Scheduler:
    """A worker's scheduler, without its thread."""
    return Scheduler(app.broker, declared(app.schedules), _thread)


def _thread(name: str, run: Callable[[], None]) -> threading.Thread:
    return threading.Thread(name=name, target=run)


def test_workers_store_one_status_per_schedule(app: App, clock: Clock) -> None:
    @app.cron("30 2 * * *", timezone="Europe/Berlin", catch_up="one", tube="nightly")
    def report() -> None: ...

    @app.every(2)
    def tick() -> None: ...

    for _ in range(2):
        scheduler(app).save()
    found = schedule_status.listed(app.broker.tube(SCHEDULE_TUBE))
    assert [(each.schedule.rpartition(".")[2], each.plan, each.tube, each.catch_up, each.paused) for each in found] == [
        ("report", "cron 30 2 * * * in Europe/Berlin", "nightly", "one", False),
        ("tick", "every 2 s", SCHEDULE_TUBE, "none", False),
    ]
    assert [each.key for each in found] == [schedule.key for schedule in declared(app.schedules)]
    assert [each.next for each in found] == [
        schedule.plan.after(clock()) / 1000 for schedule in declared(app.schedules)
    ]


def test_a_paused_schedule_puts_nothing_and_others_continue(app: App, clock: Clock) -> None:
    @app.every(2)
    def tick() -> None: ...

    @app.every(3)
    def tock() -> None: ...

    schedule_tube, working = app.broker.tube(SCHEDULE_TUBE), scheduler(app)
    working.save()
    for _ in range(2):
        schedule_status.pause(schedule_tube, declared(app.schedules)[0].key)
    scheduler(app).save()  # a worker that starts now changes nothing
    listed = schedule_status.listed(schedule_tube)
    assert [(each.paused, each.next is None) for each in listed] == [(True, True), (False, False)]
    working.put_due()
    clock.advance(5)
    assert {tick % 3000 for tick in runs(schedule_tube)} == {0}
    schedule_status.resume(schedule_tube, declared(app.schedules)[0].key)
    working.put_due()
    clock.advance(5)
    assert len(runs(schedule_tube)) >= 2
    assert not any(each.paused for each in schedule_status.listed(schedule_tube))


def test_a_schedule_can_be_run_while_it_is_paused(app: App, clock: Clock) -> None:
    @app.every(3600, pri=7, tube="slow", max_attempts=2)
    def tick() -> str:
        return "kept"

    schedule_tube, [schedule] = app.broker.tube(SCHEDULE_TUBE), declared(app.schedules)
    scheduler(app).save()
    schedule_status.pause(schedule_tube, schedule.key)
    schedule_status.run_now(schedule_tube, schedule.key)
    task = app.broker.tube("slow").take(0)
    assert task is not None
    assert task.data == {"task": schedule.handler.name, "args": {}, "tick": clock()}
    assert (task.pri, record_of(task).options.max_attempts) == (7, 2)
    assert task.address is not None
    assert "by hand" in task.address


def test_unknown_and_ambiguous_names_are_reported(app: App) -> None:
    @app.every(2)
    @app.every(3)
    def tick() -> None: ...

    schedule_tube = app.broker.tube(SCHEDULE_TUBE)
    for key in ("0123456789abcdef", "", "\0", "x" * 5000, declared(app.schedules)[0].key):
        for verb in (schedule_status.run_now, schedule_status.pause, schedule_status.resume, schedule_status.forget):
            with pytest.raises(penstock.NotFound, match="^schedule .* does not exist"):
                verb(schedule_tube, key)
    scheduler(app).save()
    with pytest.raises(penstock.BadValue, match="has 2 schedules: give the key of one"):
        schedule_status.key_of(schedule_tube, declared(app.schedules)[0].handler.name)
    schedule_status.forget(schedule_tube, declared(app.schedules)[0].key)
    assert (
        schedule_status.key_of(schedule_tube, declared(app.schedules)[0].handler.name) == declared(app.schedules)[1].key
    )
    assert len(schedule_status.listed(schedule_tube)) == 1


def test_what_only_looks_like_a_schedule_is_skipped(app: App) -> None:
    @app.every(2)
    def tick() -> None: ...

    schedule_tube, key = app.broker.tube(SCHEDULE_TUBE), declared(app.schedules)[0].key
    scheduler(app).save()
    good = schedule_tube.tasks("~")[0].data
    assert isinstance(good, dict)
    for number, broken in enumerate(({"when": {"cron": "x"}}, {"when": {"every": "x"}}, {"key": "other"}, {"data": 1})):
        schedule_tube.put({"card": good["card"] | broken}, address=f"card #{number:016x}", delay=60)
    schedule_tube.put({"card": None}, delay=60)
    assert [each.key for each in schedule_status.listed(schedule_tube)] == [key]
    schedule_tube.drop()
    assert schedule_status.paused_keys(schedule_tube, [key]) == set()


def test_the_last_run_is_kept(app: App, clock: Clock) -> None:
    @app.every(2)
    def tick() -> None: ...

    schedule_tube, working = app.broker.tube(SCHEDULE_TUBE), scheduler(app)
    working.save()
    assert schedule_status.listed(schedule_tube)[0].last is None
    working.put_due()
    clock.advance(2)
    task = schedule_tube.take(0)
    assert task is not None
    for error, expected in ((None, None), (ValueError("no"), "ValueError: no")):
        working.ended(task, error, 0.25)
        working.save_runs()
        assert schedule_status.listed(schedule_tube)[0].last == schedule_status.Run(clock.seconds, 0.25, expected)
    schedule_status.forget(schedule_tube, declared(app.schedules)[0].key)
    assert schedule_status.read_all(schedule_tube).runs == {}
