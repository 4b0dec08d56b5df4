"""Which ticks are put and when, and that each is handed out once, whichever worker puts it and however late."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest

import penstock
from penstock.app.app import App
from penstock.app.schedules import declared
from penstock.broker.tube import Tube
from penstock.core.options import Tube as StoredTube
from penstock.core.results import Stored
from penstock.core.task import Entry
from penstock.schedule.plan import Every
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.schedule.scheduler import Scheduler, _log_skipped
from penstock.schedule.ticks import LEAD_MS, MOST_MISSED, Due, Tick, find_due
from penstock.testing import Clock
from penstock.worker.fetcher import is_duplicate_tick

NOW = 1_000_000


def ats(catch_up: str, until: int | None, now: int = NOW) -> list[int]:
    return [tick.at for tick in find_due(Every(2), catch_up, until, now).ticks]


def test_ticks_are_put_up_to_the_lead() -> None:
    due = find_due(Every(2), "none", None, NOW)
    ticks = [Tick(NOW + 2000, 2000, NOW + 2000), Tick(NOW + 4000, 4000, NOW + 4000)]
    assert due == Due(ticks, NOW + LEAD_MS, NOW + 6000, [])
    assert find_due(Every(2), "none", due.until, NOW + 1000).ticks == [Tick(NOW + 6000, 5000, NOW + 6000)]


@pytest.mark.parametrize(
    ("catch_up", "missed"),
    [("none", []), ("one", [NOW]), ("all", [NOW - 4000, NOW - 2000, NOW])],
)
def test_missed_ticks_follow_catch_up(catch_up: str, missed: list[int]) -> None:
    assert ats(catch_up, NOW - 5000) == [*missed, NOW + 2000, NOW + 4000]
    assert ats(catch_up, None) == [NOW + 2000, NOW + 4000]  # a new schedule has missed nothing
    assert ats(catch_up, NOW + LEAD_MS) == []


def test_missed_ticks_are_put_for_a_moment_that_is_still_to_come() -> None:
    first = find_due(Every(2), "one", NOW - 5000, NOW).ticks[0]
    assert first == Tick(NOW, LEAD_MS, NOW + LEAD_MS // 2)


def test_a_tick_that_is_too_near_counts_as_missed() -> None:
    assert find_due(Every(2), "all", NOW, NOW + 1500).ticks[0].delay == LEAD_MS
    assert find_due(Every(2), "none", NOW, NOW + 1500).ticks[0].delay == 500


def test_many_missed_ticks_go_in_bounded_steps() -> None:
    due = find_due(Every(2), "all", 0, 10_000_000)
    assert (len(due.ticks), due.until) == (MOST_MISSED, 2000 * MOST_MISSED)


# on a store


def runs(tube: Tube) -> list[float]:
    """The ticks that a worker would run now, without duplicates."""
    found = []
    while task := tube.take(0):
        data = task.data
        assert isinstance(data, dict)
        if not is_duplicate_tick(task, data):
            found.append(data["tick"])
        task.ack()
    return found


def scheduler(app: App) -> Scheduler:
    """A worker's scheduler, without its thread."""
    return Scheduler(app.broker, declared(app.schedules), lambda name, run: threading.Thread(name=name, target=run))


def test_several_workers_put_each_tick_once(app: App, clock: Clock) -> None:
    @app.every(2)
    def tick() -> None: ...

    tube, workers = app.broker.tube(SCHEDULE_TUBE), [scheduler(app) for _ in range(3)]
    ran: list[float] = []
    for _ in range(12):
        for worker in workers:
            worker.put_due()
        clock.advance(1)
        ran += runs(tube)
    assert ran == sorted(set(ran))
    assert [later - earlier for earlier, later in pairwise(ran)] == [2000] * (len(ran) - 1)
    assert len(ran) >= 5


@pytest.mark.parametrize("catch_up", ["none", "all"])
def test_a_worker_that_slept_over_its_put_runs_nothing_twice(
    app: App, clock: Clock, catch_up: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.every(2, catch_up=catch_up)
    def tick() -> None: ...

    tube, late = app.broker.tube(SCHEDULE_TUBE), scheduler(app)
    scheduler(app).put_due()
    [planned] = late._declared
    stale = planned.find_due(None, clock())
    clock.advance(5)
    first = runs(tube)
    for each, task in zip(stale.ticks, tube.put_many([planned.item(tick) for tick in stale.ticks]), strict=True):
        _log_skipped(planned, each, task)  # long after the others
    clock.advance(5)
    assert len(first) == 2
    assert runs(tube) == []
    assert caplog.text.count("this worker put it too late") == 2


@pytest.mark.parametrize(("catch_up", "missed"), [("none", 0), ("one", 1), ("all", 5)])
def test_missed_ticks_follow_catch_up_once(app: App, clock: Clock, catch_up: str, missed: int) -> None:
    @app.every(2, catch_up=catch_up)
    def tick() -> None: ...

    tube = app.broker.tube(SCHEDULE_TUBE)
    scheduler(app).put_due()
    clock.advance(5)
    assert len(runs(tube)) == 2
    clock.advance(9.5)  # no worker for a while
    for _ in range(3):
        scheduler(app).put_due()  # three that start at the same time
    clock.advance(5)
    ran = runs(tube)
    assert len(ran) == missed + 2
    assert ran == sorted(set(ran))


def test_what_is_not_put_is_logged(app: App, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    @app.every(2)
    def tick() -> None: ...

    tube, worker = app.broker.tube(SCHEDULE_TUBE), scheduler(app)
    worker.put_due()
    clock.advance(9.5)  # the worker slept
    worker.put_due()
    assert "tick of schedule" in caplog.text
    assert "this worker was late" in caplog.text
    caplog.clear()
    tube.pause()
    clock.advance(7)
    worker.put_due()
    worker.put_due()
    assert caplog.text.count("it is paused") == 1
    tube.resume()
    caplog.clear()
    worker.put_due()
    clock.advance(5)
    assert len(runs(tube)) >= 2
    assert caplog.text == ""


def test_a_paused_tube_misses_its_ticks(app: App, clock: Clock) -> None:
    @app.every(2, catch_up="one")
    def tick() -> None: ...

    tube, worker = app.broker.tube(SCHEDULE_TUBE), scheduler(app)
    worker.put_due()
    clock.advance(5)
    assert len(runs(tube)) == 2
    tube.pause()
    worker.put_due()
    clock.advance(8)
    worker.put_due()
    tube.resume()
    assert runs(tube) == []
    worker.put_due()
    clock.advance(5)
    assert len(runs(tube)) == 1 + 2


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("seconds", "again"), [(50, False), (100, True)])
def test_a_clock_that_is_set_back(app: App, clock: Clock, seconds: int, again: bool, restarted: bool) -> None:
    @app.every(10)
    def tick() -> None: ...

    tube, workers, ran = app.broker.tube(SCHEDULE_TUBE), [scheduler(app) for _ in range(2)], list[float]()

    def pass_by(seconds: int) -> None:
        for _ in range(0, seconds, 2):
            for worker in workers:
                worker.put_due()
            clock.advance(2)
            ran.extend(runs(tube))

    pass_by(130)
    first = list(ran)
    clock.advance(-seconds)
    if restarted:
        workers[:] = [scheduler(app)]
    pass_by(seconds + 20)
    assert first == sorted(set(first))
    twice = sorted({at for at in ran if ran.count(at) > 1})
    assert len(ran) - len(set(ran)) == len(twice)
    assert len(twice) == (10 if again else 0)
    assert sorted(set(ran)) == [first[0] + 10_000 * place for place in range(len(set(ran)))]


def test_many_schedules_of_one_minute_are_put_in_one_call(
    app: App, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        app.cron("* * * * *", name=f"tick{number}", tube="minutely")(lambda: None)
    tube, worker = app.broker.tube("minutely"), scheduler(app)
    worker.save()
    worker.put_due()
    runs(tube)
    clock.advance(60 - clock.seconds % 60 - 4)
    store, puts = app.broker.runtime.store, list[int]()
    put = store.put

    def counted(tube: StoredTube, entries: Sequence[Entry]) -> Stored:
        puts.append(len(entries))
        return put(tube, entries)

    monkeypatch.setattr(store, "put", counted)
    worker.put_due()
    clock.advance(4)
    assert tube.stats().tasks.ready == 300
    assert sorted(puts) == [1, 300]  # and up to when ticks were put


def test_a_tick_is_skipped_while_the_last_one_is_in_its_tube(
    app: App, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.every(10, overlap=False)
    def slow() -> None: ...

    tube, workers = app.broker.tube(SCHEDULE_TUBE), [scheduler(app) for _ in range(2)]
    taken: list[tuple[float, penstock.Task]] = []
    for _ in range(60):
        for worker in workers:
            worker.put_due()
        clock.advance(1)
        task = tube.take(0)
        if task is not None:
            assert isinstance(task.data, dict)
            assert not is_duplicate_tick(task, task.data)
            taken.append((clock.seconds, task))
            if len(taken) == 2:  # the second one stays in the tube for a while
                tube.bury(task)
            else:
                task.ack()
        if len(taken) == 2 and clock.seconds == taken[1][0] + 25:
            tube.delete(taken[1][1].id)
    starts = [moment for moment, _ in taken]
    assert [round(later - earlier) for earlier, later in pairwise(starts)] == [10, 30, 10]
    assert "the last one is still in tube" in caplog.text
