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
# the tick, and logs that.
LEAD_MS = 5_000
# Where a tick is skipped while the last one is in its tube, it is put so short before its time.
SHORT_LEAD_MS = 2_000
# One that is nearer than this could be stored too late, and counts as missed.
MARGIN_MS = 1_000
# A clock that was set back by more than this passes its times again, and their ticks are put again.
SET_BACK_MS = 60_000
CATCH_UP = ("none", "one", "all")
# Missed ticks put in one step.
MOST_MISSED = 1_000


class Tick(NamedTuple):
    """One time of a schedule: its task is ready after `delay`, and a double when stored at `before` or later."""

    at: int
    delay: int
    before: int


class Due(NamedTuple):
    """The ticks to put, up to when the schedule is put then, and its next time; `late` are past and not put."""

    ticks: list[Tick]
    until: int
    next: int
    late: list[int]


def find_due(plan: Plan, catch_up: str, until: int | None, now: int, lead: int = LEAD_MS) -> Due:
    """The ticks after `until` (None: never run before) that are missed, or due within the lead."""
    horizon = now + lead
    if until is not None and until > now + LEAD_MS + SET_BACK_MS:
        until = None
    missed, late = list[int](), list[int]()
    if until is not None and catch_up == "one":
        last = plan.until(now + MARGIN_MS)
        missed = [last] if last > until else []
    elif until is not None and catch_up == "all":
        missed = past_ticks(plan, until, now + MARGIN_MS)
    elif until is not None:
        late = past_ticks(plan, until, now)
    ticks = [Tick(at, LEAD_MS, now + LEAD_MS // 2) for at in missed]
    if len(missed) == MOST_MISSED:
        return Due(ticks, missed[-1], missed[-1], late)
    at = plan.after(max(now, until or 0, *missed))
    while at <= horizon:
        ticks.append(Tick(at, at - now, at))
        at = plan.after(at)
    return Due(ticks, max(horizon, until or 0), at, late)


def past_ticks(plan: Plan, until: int, now: int) -> list[int]:
    """The times after one moment and up to another, at most MOST_MISSED."""
    found: list[int] = []
    at = plan.after(until) if until < now else now + 1
    while at <= now and len(found) < MOST_MISSED:
        found.append(at)
        at = plan.after(at)
    return found


def check_catch_up(value: object) -> str:
    """How missed ticks are treated; BadValue for anything unknown."""
    if value not in CATCH_UP:
        raise BadValue(f"catch_up {shown(value)} is unknown: give {', '.join(CATCH_UP)}")
    return str(value)
