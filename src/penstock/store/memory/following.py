"""Tasks that follow the records of their groups: started ones become ready, cancelled ones go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import group as rules
from penstock.core import lifecycle
from penstock.core.group import Group
from penstock.store.base import ADVANCE_STEP
from penstock.store.memory.step import Step
from penstock.store.refusals import tube_full

if TYPE_CHECKING:
    from penstock.store.memory.tube import TubeState


def turn(state: TubeState, group: Group, to: str, step: Step) -> bool:
    """Start or cancel a group, move some of its tasks, and say whether more must move."""
    tube, total = state.tube, len(state.records)
    if tube.capacity is not None and total >= tube.capacity and rules.needs_room(group, to):
        raise tube_full(tube, total, 1)
    if rules.turn(group, to):
        state.links.groups.turned(group)
        state.links.end(group, step)
    return follow(state, ADVANCE_STEP, step)


def follow(state: TubeState, limit: int | None, step: Step) -> bool:
    """Move at most limit tasks, and say whether more must move."""
    groups, done = state.links.groups, 0
    while (record := groups.next_to_move()) is not None:
        if done == limit:
            return True
        done += 1
        started = groups.state_of(record) == rules.STARTED
        state.apply(record, rules.followed(record, step.now) if started else lifecycle.removed(record, "delete"), step)
    return False
