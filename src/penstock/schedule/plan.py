"""Recurring times: by a cron expression in a time zone, or at a fixed interval. Milliseconds since the epoch."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, cast
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.core.names import kind_of, shown
from penstock.core.values import Seconds, plain_seconds, positive_ms
from penstock.errors import BadValue

# A shorter interval would fill the tube with ticks that are put ahead.
SHORTEST_MS = 100


When = dict[str, str | float]


class Plan(Protocol):
    """The times at which a schedule is due."""

    @property
    def when(self) -> When:
        """The text or number that `make_plan` turns into this plan."""

    @property
    def text(self) -> str:
        """The plan in words; different plans have different texts."""

    def after(self, moment: int) -> int:
        """The first time after that moment."""

    def until(self, moment: int) -> int:
        """The last time up to that moment."""


class Every:
    """The multiples of a number of seconds since the epoch, so that all workers agree without communicating."""

    def __init__(self, seconds: Seconds) -> None:
        self._ms = positive_ms("every", seconds)
        self.when: When = {"every": cast(float, plain_seconds(seconds))}
        if self._ms < SHORTEST_MS:
            raise BadValue(f"every {shown(seconds)} is too often: give at least {SHORTEST_MS / 1000} seconds")

    @property
    def text(self) -> str:
        """The plan in words."""
        return f"every {self._ms / 1000:g} s"

    def after(self, moment: int) -> int:
        """The first time after that moment."""
        return (moment // self._ms + 1) * self._ms

    def until(self, moment: int) -> int:
        """The last time up to that moment."""
        return moment // self._ms * self._ms


class Cron:
    """The times of a cron expression of five fields, or six with seconds first, in a time zone.

    When daylight saving time begins, a time that does not exist is due right after the gap; when it ends, a time that
    exists twice is due once. Expressions for every hour or minute are due at every real hour or minute.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        self.expression = expression
        self.timezone = timezone
        self.when: When = {"cron": expression, "timezone": timezone}
        self._zone = _zone(timezone)
        if not isinstance(expression, str):
            raise BadValue(f"cron {shown(expression)} is {kind_of(expression)}: give a str such as '*/5 * * * *'")
        try:
            next(CronSim(expression, datetime.now(self._zone)))
        except CronSimError as error:
            raise BadValue(
                f"cron {shown(expression)} cannot be read ({error}): give minute, hour, day, month and weekday, "
                "such as '*/5 * * * *'"
            ) from None
        except StopIteration:
            raise BadValue(f"cron {shown(expression)} names a day that does not exist: correct it") from None

    @property
    def text(self) -> str:
        """The plan in words."""
        return f"cron {self.expression} in {self.timezone}"

    def after(self, moment: int) -> int:
        """The first time after that moment."""
        return _ms(next(CronSim(self.expression, self._time(moment))))

    def until(self, moment: int) -> int:
        """The last time up to that moment."""
        return _ms(next(CronSim(self.expression, self._time(moment + 1000), reverse=True)))

    def _time(self, moment: int) -> datetime:
        return datetime.fromtimestamp(moment // 1000, self._zone)


def make_plan(when: When) -> Plan:
    """The plan for a cron text or a number of seconds."""
    if "every" in when:
        return Every(float(when["every"]))
    return Cron(str(when.get("cron", "")), str(when.get("timezone", "")))


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (ValueError, TypeError, OSError, LookupError):
        raise BadValue(f"timezone {shown(name)} is unknown: give a name such as 'Europe/Berlin' or 'UTC'") from None


def _ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000
