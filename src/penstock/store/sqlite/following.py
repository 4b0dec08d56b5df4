"""Tasks that follow the records of their groups: started ones become ready, cancelled ones go."""

from __future__ import annotations

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.task import Record
from penstock.store.base import ADVANCE_STEP, tube_full
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


def follow(step: Step, limit: int, *, cancelled: int = ADVANCE_STEP) -> bool:
    """Move at most limit tasks, of a cancelled group so many, and say whether more may have to."""
    for group in step.links.moving():
        if limit == 0:
            return True
        limit -= _follow_one(step, group, min(limit, cancelled) if group.state == rules.CANCELLING else limit)
    return limit == 0


def clear_front(step: Step, count: int, top: int) -> None:
    """Clear away what is cancelled among the first ready tasks, a step of it more than is wanted.

    Without micro-queues it only leaves the ready index, as if its group were not started, and is removed later: a
    taker waits for this, and no taker meets it again.
    """
    met = [id for (id,) in step.execute(Q.cancelled_first, (step.tube.no, top, count + ADVANCE_STEP))]
    if step.tube.kind.per_utube:
        for id in met:
            step.record(id)  # a look removes it
    else:
        step.withdraw(met)
    step.finish()


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
