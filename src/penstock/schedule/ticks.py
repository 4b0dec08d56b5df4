"""Which ticks of a schedule are to be put now. Pure: it is given the time and what was put before.

A tick is put a little ahead of its time, delayed until then, with an address that says which one it is. Its address
is in use at least until its time, so of all puts before that only the first stores anything; and a task that was
stored after it (`before`) is known to be a double, whichever worker put it and however late. So each tick is run once,
without a leader. Missed ticks are put for a moment that is still to come, by the same rule.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.names import shown
from penstock.errors import BadValue
from penstock.schedule.plan import Plan

# So far ahead ticks are put. A worker that needs longer than this between its look at the clock and its put loses
# the tick.
LEAD_MS = 5_000
# One that is nearer than this could be stored too late, and counts as missed.
MARGIN_MS = 1_000
CATCH_UP = ("none", "one", "all")
# Missed ticks put in one step.
MOST_MISSED = 1_000


class Tick(NamedTuple):
    """One time of a schedule: its task is ready after `delay`, and a double when stored at `before` or later."""

    at: int
    delay: int
    before: int


class Due(NamedTuple):
    """The ticks to put, and up to when the schedule is put then."""

    ticks: list[Tick]
    until: int


def find_due(plan: Plan, catch_up: str, until: int | None, now: int) -> Due:
    """The ticks after `until` (None: never run before) that are missed, or due within the lead."""
    horizon = now + LEAD_MS
    missed = [] if until is None or catch_up == "none" else _missed(plan, catch_up, until, now + MARGIN_MS)
    ticks = [Tick(at, LEAD_MS, now + LEAD_MS // 2) for at in missed]
    if len(missed) == MOST_MISSED:
        return Due(ticks, missed[-1])
    at = plan.after(max(now, until or 0, *missed))
    while at <= horizon:
        ticks.append(Tick(at, at - now, at))
        at = plan.after(at)
    return Due(ticks, max(horizon, until or 0))


def _missed(plan: Plan, catch_up: str, until: int, now: int) -> list[int]:
    if catch_up == "one":
        last = plan.until(now)
        return [last] if last > until else []
    found: list[int] = []
    at = plan.after(until)
    while at <= now and len(found) < MOST_MISSED:
        found.append(at)
        at = plan.after(at)
    return found


def check_catch_up(value: object) -> str:
    """How missed ticks are treated; BadValue for anything unknown."""
    if value not in CATCH_UP:
        raise BadValue(f"catch_up {shown(value)} is unknown: give {', '.join(CATCH_UP)}")
    return str(value)
