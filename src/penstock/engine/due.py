"""What the clock and the groups demand of a tube: delays end, leases lapse, ttls expire, tasks follow their group."""

from __future__ import annotations

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.lifecycle import became_due, cancelled
from penstock.core.refusals import tube_full
from penstock.engine.port import Due, Members, Unstarted
from penstock.engine.work import Work


def advance(work: Work, limit: int) -> bool:
    """Apply at most `limit` changes that are due, and flush them. Returns whether more may be due."""
    loaded = work.step.load(work.tube, Due(limit))
    records = work.know(loaded)
    moving = sorted(group.no for group in loaded.groups.values() if group.moving)
    for record in records:
        work.change(record, became_due(record, work.now))
        if work.heavy:
            work.flush()
    work.flush()
    return follow(work, moving, limit - len(records)) or len(records) == limit


def turn_group(work: Work, no: int, to: str) -> Group | None:
    """Start or cancel a group and flush that; None where it is forgotten.

    TubeFull where its work would need room that no task of its own makes.
    """
    group = work.group(no)
    if group is None:
        return None
    tube = work.tube
    if tube.capacity is not None and rules.needs_room(group, to):
        stored = work.step.counters(tube).counts.stored
        if stored >= tube.capacity:
            raise tube_full(tube, stored, 1)
    if rules.turn(group, to):
        work.end_group(group)
    work.flush()
    return group


def follow(work: Work, groups: list[int], limit: int) -> bool:
    """Move at most `limit` tasks after the records of their groups. Returns whether more may have to move."""
    for no in groups:
        if limit <= 0:
            return True
        limit -= _follow_one(work, no, limit)
    return limit <= 0 and bool(groups)


def _follow_one(work: Work, no: int, limit: int) -> int:
    group = work.group(no)
    if group is None or not group.moving:
        return 0
    if group.state == rules.CANCELLING:
        records = work.load(Members(no, limit))
        for record in records:
            work.change(record, cancelled(record))
    else:
        records = work.load(Unstarted(no, limit))
        for record in records:
            work.change(record, rules.followed(record, work.now))
    if len(records) < limit and group.state in (rules.STARTED, rules.CANCELLING):
        group.moving = False  # a wrong counter is for check to find, not to spin on
        work.end_group(group)
    work.flush()
    return len(records)
