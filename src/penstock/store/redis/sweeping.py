"""Calls on many tasks of a tube: each is a row of scripts of a bounded number, so that nobody waits long for one."""

from __future__ import annotations

from typing import cast

from penstock.core.options import Tube
from penstock.store.base import ADVANCE_STEP, Effects, Settled
from penstock.store.redis.finding import PAGE
from penstock.store.redis.link import Reply
from penstock.store.redis.steps import Steps
from penstock.store.stepwise import stepwise


def kick(steps: Steps, tube: Tube, count: int, now: int | None) -> Settled:
    """Un-bury up to count tasks, in take order."""
    settled = Settled([], Effects())
    while len(settled.records) < count:
        limit = min(count - len(settled.records), ADVANCE_STEP)
        more, places, *_ = _sweep(steps, "kick", tube, settled, limit, now)
        if not more and len(cast("list[int]", places)) < limit:
            break
    return settled


def release_all(steps: Steps, tube: Tube, now: int | None) -> Settled:
    """Release every taken task; what is taken meanwhile may stay taken."""
    settled = Settled([], Effects())
    left: int | None = None
    while left is None or left > 0:
        more, places, still = _sweep(steps, "release_all", tube, settled, ADVANCE_STEP, now)
        if not more:
            done, still = len(cast("list[int]", places)), cast(int, still)
            left = min(still, still if left is None else left - done)
    return _in_order(settled)


def truncate(steps: Steps, tube: Tube, now: int | None) -> Settled:
    """Remove every task; those put while it runs have higher ids than the last one seen first, and stay."""
    settled = Settled([], Effects())
    cursor, last = b"0", ""
    while True:
        with stepwise(settled.records):
            records, rest = steps.run("truncate", tube, settled.effects, cursor, PAGE, last, now=now)
        cursor, last = cast(bytes, rest[0]), str(rest[1])
        settled.records.extend(records[place - 1] for place in cast("list[int]", rest[2]))
        if cursor == b"0":
            return _in_order(settled)


def _sweep(steps: Steps, name: str, tube: Tube, settled: Settled, limit: int, now: int | None) -> list[Reply]:
    """One step of kick or release_all, added to those before; its answer begins with whether more is due."""
    with stepwise(settled.records):
        records, rest = steps.run(name, tube, settled.effects, ADVANCE_STEP, limit, now=now)
    settled.records.extend(records[place - 1] for place in cast("list[int]", rest[1]))
    return rest


def _in_order(settled: Settled) -> Settled:
    settled.records.sort(key=lambda record: record.id if record else 0)
    return settled
