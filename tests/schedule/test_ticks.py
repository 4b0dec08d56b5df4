"""Which ticks are put when, and that each is handed out once, whoever puts it and however late."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.app.app import App
from penstock.broker.tube import Tube
from penstock.schedule.plan import Every
from penstock.schedule.ticks import LEAD_MS, MOST_MISSED, Tick, find_due
from penstock.testing import Clock
from penstock.worker.fetcher import is_double

NOW = 1_000_000


def ats(catch_up: str, until: int | None, now: int = NOW) -> list[int]:
    return [tick.at for tick in find_due(Every(2), catch_up, until, now).ticks]


def test_ticks_are_put_up_to_the_lead() -> None:
    due = find_due(Every(2), "none", None, NOW)
    assert due == ([Tick(NOW + 2000, 2000, NOW + 2000), Tick(NOW + 4000, 4000, NOW + 4000)], NOW + LEAD_MS)
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
    """The ticks that a worker would run now; the doubles among them are left out."""
    found = []
    while task := tube.take(0):
        data = task.data
        assert isinstance(data, dict)
        if not is_double(task, data):
            found.append(data["tick"])
        task.ack()
    return found


def test_several_workers_put_each_tick_once(app: App, clock: Clock) -> None:
    @app.every(2)
    def tick() -> None: ...

    tube, [schedule] = app.broker.tube("penstock.schedule"), app.schedules
    untils: list[int | None] = [None, None, None]
    ran: list[float] = []
    for _ in range(12):
        untils = [schedule.put_due(tube, until) for until in untils]
        clock.advance(1)
        ran += runs(tube)
    assert ran == sorted(set(ran))
    assert [later - earlier for earlier, later in pairwise(ran)] == [2000] * (len(ran) - 1)
    assert len(ran) >= 5


@pytest.mark.parametrize("catch_up", ["none", "all"])
def test_a_worker_that_slept_over_its_put_runs_nothing_twice(app: App, clock: Clock, catch_up: str) -> None:
    @app.every(2, catch_up=catch_up)
    def tick() -> None: ...

    tube, [schedule] = app.broker.tube("penstock.schedule"), app.schedules
    schedule.put_due(tube, None)
    stale = find_due(schedule.plan, catch_up, None, clock())
    clock.advance(5)
    first = runs(tube)
    tube.put_many([schedule._item(tube, *tick) for tick in stale.ticks])  # long after the others
    clock.advance(5)
    assert len(first) == 2
    assert runs(tube) == []


@pytest.mark.parametrize(("catch_up", "missed"), [("none", 0), ("one", 1), ("all", 5)])
def test_what_nobody_put_follows_catch_up_once(app: App, clock: Clock, catch_up: str, missed: int) -> None:
    @app.every(2, catch_up=catch_up)
    def tick() -> None: ...

    tube, [schedule] = app.broker.tube("penstock.schedule"), app.schedules
    schedule.put_due(tube, None)
    clock.advance(5)
    assert len(runs(tube)) == 2
    clock.advance(9.5)  # no worker for a while
    for _ in range(3):
        schedule.put_due(tube, None)  # three that start at the same time
    clock.advance(5)
    ran = runs(tube)
    assert len(ran) == missed + 2
    assert ran == sorted(set(ran))


def test_a_paused_tube_misses_its_ticks(app: App, clock: Clock) -> None:
    @app.every(2, catch_up="one")
    def tick() -> None: ...

    tube, [schedule] = app.broker.tube("penstock.schedule"), app.schedules
    schedule.put_due(tube, None)
    clock.advance(5)
    assert len(runs(tube)) == 2
    tube.pause()
    schedule.put_due(tube, None)
    clock.advance(8)
    schedule.put_due(tube, None)
    tube.resume()
    assert runs(tube) == []
    schedule.put_due(tube, None)
    clock.advance(5)
    assert len(runs(tube)) == 1 + 2
