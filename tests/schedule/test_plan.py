"""The times of cron expressions and fixed intervals, across changes of daylight saving time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

import penstock
from penstock.app.schedules import declared
from penstock.schedule.plan import Cron, Every, Plan


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def times(plan: Plan, start: str, count: int) -> list[str]:
    """The next times after a given one, in UTC; each must be its own latest time."""
    found: list[str] = []
    at = ms(start)
    for _ in range(count):
        before, at = at, plan.after(at)
        assert (plan.until(at), plan.until(at + 999)) == (at, at)
        assert plan.until(at - 1) <= before or found == []
        found.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        ("*/5 * * * *", "UTC", "2024-01-01T00:04:59", ["01 00:05:00", "01 00:10:00"]),
        ("0 9 * * mon-fri", "Europe/Berlin", "2024-01-05T12:00", ["08 08:00:00", "09 08:00:00"]),
        # Clocks go from 2:00 to 3:00: times in the gap come right after it.
        ("30 2 * * *", "Europe/Berlin", "2024-03-30T12:00", ["31 01:00:00", "01 00:30:00"]),
        ("*/30 * * * *", "Europe/Berlin", "2024-03-31T00:15", ["31 00:30:00", "31 01:00:00", "31 01:30:00"]),
        # Clocks go from 3:00 back to 2:00: a time of day comes once, every half hour continues.
        ("30 2 * * *", "Europe/Berlin", "2024-10-26T12:00", ["27 00:30:00", "28 01:30:00"]),
        ("30 * * * *", "Europe/Berlin", "2024-10-26T23:45", ["27 00:30:00", "27 01:30:00", "27 02:30:00"]),
        ("*/20 * * * * *", "UTC", "2024-01-01T00:00:30", ["01 00:00:40", "01 00:01:00", "01 00:01:20"]),
    ],
)
def test_cron(expression: str, zone: str, start: str, expected: list[str]) -> None:
    assert times(Cron(expression, zone), start, len(expected)) == expected


def test_every_fires_at_the_same_times_for_all() -> None:
    assert times(Every(90), "2024-01-01T00:00:10", 3) == ["01 00:01:30", "01 00:03:00", "01 00:04:30"]
    assert Every(0.5).after(1_250) == 1_500


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda app: app.cron("*/5 * * *"), "cron '\\*/5 \\* \\* \\*' cannot be read"),
        (lambda app: app.cron("61 * * * *"), "cannot be read"),
        (lambda app: app.cron(5), "cron 5 is an int"),
        (lambda app: app.cron("* * * * *", timezone="Mars/Olympus"), "timezone 'Mars/Olympus' is unknown"),
        (lambda app: app.cron("* * * * *", timezone=5), "timezone 5 is unknown"),
        (lambda app: app.cron("* * * * *", catch_up="some"), "catch_up 'some' is unknown: give none, one, all"),
        (lambda app: app.every(0), "every 0 is out of range"),
        (lambda app: app.every(0.01), "too often"),
        (lambda app: app.every("5"), "every '5' is a str"),
        (lambda app: app.every(5, name="tick")(lambda needed: None), "missing a required argument"),
    ],
)
def test_a_bad_schedule_is_refused_where_it_is_declared(make: Callable[[penstock.App], object], message: str) -> None:
    app = penstock.App("memory://schedules")
    with pytest.raises(penstock.BadValue, match=message):
        make(app)
    assert declared(app.schedules) == []
