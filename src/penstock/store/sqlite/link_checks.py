"""Cross-checks of addresses, outcomes and groups in SQLite, against the tasks themselves; and repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import apsw

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record
from penstock.store.base import Effects, Finding
from penstock.store.sql.group_checks import problems
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.links import load_group
from penstock.store.sqlite.step import Step


def check_links(db: apsw.Connection, tube: Tube, now: int, repair: bool) -> Iterator[Finding]:
    """Findings in the order in which they must be mended."""
    yield from _strays(db, tube, now, repair)
    yield from _outcomes(db, tube, repair)
    for row in list(db.execute(Q.all_groups, (tube.no,))):
        yield from _group(db, tube, load_group(row), now, repair)
    yield from _moving(db, tube, repair)


def _strays(db: apsw.Connection, tube: Tube, now: int, repair: bool) -> Iterator[Finding]:
    for (id,) in list(db.execute(Q.stray_members, (tube.no,))):
        yield Finding(tube.name, id, "its group is not there", "take it out of the group")
    if repair:
        db.execute(Q.free_strays, (tube.no, now))


def _outcomes(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    for (id,) in list(db.execute(Q.early_outcomes, (tube.no,))):
        yield Finding(tube.name, id, "has an outcome, but is still there", "forget the outcome")
    if repair:
        db.execute(Q.forget_early_outcomes, (tube.no,))


def _group(db: apsw.Connection, tube: Tube, group: Group, now: int, repair: bool) -> Iterator[Finding]:
    states: Counter[str] = Counter(dict(db.execute(Q.recount_group, (group.no,))))
    wrong = list(problems(group, states))
    for what, remedy in wrong:
        yield Finding(tube.name, None, f"group {group.name}: {what}", remedy)
    if repair and wrong:
        _mend(db, tube, group.no, states, now)


def _mend(db: apsw.Connection, tube: Tube, no: int, states: Counter[str], now: int) -> None:
    step = Step(db, tube, now, Effects())
    group = step.links.group(no)
    if group is None:
        return
    group.left = states.total()
    group.total = max(group.total, group.left)
    if group.state in rules.OVER and group.left:
        group.state = rules.STARTED if group.state == rules.DONE else rules.CANCELLING
        group.until = None
    group.moving = group.state == rules.CANCELLING or (group.state == rules.STARTED and states[UNSTARTED] > 0)
    if group.state == rules.OPEN:
        for record in [Record(*row) for row in db.execute(Q.early_members, (no,))]:
            step.apply(record, rules.held_back(record))
    step.links.end(group)
    step.finish()


def _moving(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    marked, moving = db.execute(Q.check_moving, (tube.no,)).get
    if marked != moving:
        yield Finding(tube.name, None, "the mark for groups whose tasks must follow is wrong", "set it anew")
        if repair:
            db.execute(Q.note_moving, (tube.no,))
