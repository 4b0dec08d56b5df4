"""Tasks that follow the records of their groups: started ones become ready, cancelled ones go."""

from __future__ import annotations

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.task import Record
from penstock.store.base import ADVANCE_STEP
from penstock.store.refusals import tube_full
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.puts import total_of
from penstock.store.sqlite.step import Step


def turn(step: Step, no: int, to: str) -> bool:
    """Start or cancel a group, move some of its tasks, and say whether more must move."""
    group = step.links.group(no)
    if group is None:
        return False
    if (
        step.tube.capacity is not None
        and rules.needs_room(group, to)
        and (total := total_of(step)) >= step.tube.capacity
    ):
        raise tube_full(step.tube, total, 1)
    if rules.turn(group, to):
        step.links.end(group)
    return follow(step, ADVANCE_STEP)


def follow(step: Step, limit: int) -> bool:
    """Move at most limit tasks, and say whether more may have to."""
    for group in step.links.moving():
        if limit == 0:
            return True
        limit -= _follow_one(step, group, limit)
    return limit == 0


def _follow_one(step: Step, group: Group, limit: int) -> int:
    if group.state == rules.CANCELLING:
        ids = [row[0] for row in step.execute(Q.member_ids, (group.no, limit))]
        for id in ids:
            step.record(id)  # a look removes it
        if len(ids) < limit and group.moving:  # its counter is wrong: that is for check to say, not to spin on
            group.moving = False
            step.links.changed(group)
        return len(ids)
    records = [Record(*row) for row in step.execute(Q.unstarted, (group.no, limit))]
    for record in records:
        step.apply(record, rules.followed(record, step.now))
    if len(records) < limit:
        group.moving = False
        step.links.changed(group)
    return len(records)
