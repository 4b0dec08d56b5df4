"""What can be wrong with a group's record, beside the tasks that are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.task import UNSTARTED


def problems(group: Group, states: Counter[str]) -> Iterator[tuple[str, str]]:
    """What is wrong, and its remedy. `states`: how many of the group's tasks are in each."""
    left = states.total()
    if group.left != left:
        yield f"says {group.left} tasks are left, there are {left}", "count them anew"
    if group.total < left:
        yield f"says {group.total} tasks were put, there are {left}", "count them anew"
    if group.state in rules.OVER and left:
        yield f"is {group.state}, but has {left} tasks left", "take it up again"
    if group.state in (rules.STARTED, rules.CANCELLING) and not left:
        yield "should have ended", "end it"
    if group.state == rules.OPEN and (early := left - states[UNSTARTED] - states["!"]):
        yield f"is not started, but {early} of its tasks can be taken", "hold them back"
    waiting = states[UNSTARTED] if group.state == rules.STARTED else left if group.state == rules.CANCELLING else 0
    if waiting and not group.moving:
        yield f"{waiting} tasks do not follow its record", "let them follow"
