"""Which ticks of a schedule to put now. Pure: the time and what was put before are arguments.

A tick is put ahead of its time, delayed until then, under an address that identifies it. The address is in use at
least until that time, so only the first put of any worker stores a task. A task that was stored later than its time
(`before`) is recognised as a duplicate, whichever worker put it. So each tick runs once, without a leader. Missed ticks
are put for a time that is still to come, by the same rule.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.names import shown
from penstock.errors import BadValue
from penstock.schedule.plan import Plan

# How far ahead ticks are put. A worker that needs longer between reading the clock and its put skips the tick and
# logs it.
LEAD_MS = 5_000
# With overlap=False, how far ahead ticks are put.
SHORT_LEAD_MS = 2_000
# A tick that is nearer than this could be stored too late, and counts as missed.
MARGIN_MS = 1_000
# After the clock was set back by more than this, repeated times are put again.
SET_BACK_MS = 60_000
CATCH_UP = ("none", "one", "all")
# Missed ticks put in one step.
MOST_MISSED = 1_000


class Tick(NamedTuple):
    """One time of a schedule: its task is ready after `delay`, and a duplicate if it is stored at `before` or later."""

    at: int
    delay: int
    before: int


class Due(NamedTuple):
    """The ticks to put, the time up to which they cover the schedule, and its next time; `late` ticks are skipped."""

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
    """The times after `until` and up to `now`, at most MOST_MISSED."""
    found: list[int] = []
    at = plan.after(until) if until < now else now + 1
    while at <= now and len(found) < MOST_MISSED:
        found.append(at)
        at = plan.after(at)
    return found


def check_catch_up(value: object) -> str:
    """Validate the option catch_up."""
    if value not in CATCH_UP:
        raise BadValue(f"catch_up {shown(value)} is unknown: give {', '.join(CATCH_UP)}")
    return str(value)
