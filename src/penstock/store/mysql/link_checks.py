"""Cross-checks of addresses, outcomes and groups in MySQL, against the tasks themselves; and repair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED
from penstock.store.base import Finding
from penstock.store.mysql.linked import make_group
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q
from penstock.store.sql.group_checks import problems


def check_links(link: Link, tube: Tube, now: int, repair: bool) -> Iterator[Finding]:
    """Findings in the order in which they must be mended."""
    yield from _strays(link, tube, now, repair)
    yield from _addresses(link, tube, repair)
    yield from _outcomes(link, tube, repair)
    states: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for no, state, count in link.rows(Q.recount_groups, (tube.no,)):
        states[no][state] = count
    for row in link.rows(Q.all_groups, (tube.no,)):
        yield from _group(link, tube, make_group(row), states[row[0]], now, repair)
    yield from _mark(link, tube, repair)


def _strays(link: Link, tube: Tube, now: int, repair: bool) -> Iterator[Finding]:
    for (id,) in link.rows(Q.stray_members, (tube.no,)):
        yield Finding(tube.name, id, "its group is not there", "take it out of the group")
    if repair:
        link.change(Q.free_strays, (now, tube.no))


def _addresses(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    rows = link.rows(Q.wrong_addresses, (tube.no, tube.no))
    for id, address in rows:
        what = f"address {address.decode()} is that of another task, or of none"
        yield Finding(tube.name, id, what, "believe the tasks")
    if repair and rows:
        link.change(Q.forget_wrong_addresses, (tube.no,))
        link.change(Q.set_addresses, (tube.no,))


def _outcomes(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    rows = link.rows(Q.early_outcomes, (tube.no,))
    for (id,) in rows:
        yield Finding(tube.name, id, "has an outcome, but is still there", "forget the outcome")
    if repair and rows:
        link.change(Q.forget_early_outcomes, (tube.no,))


def _group(link: Link, tube: Tube, group: Group, states: Counter[str], now: int, repair: bool) -> Iterator[Finding]:
    wrong = list(problems(group, states))
    if link.rows(Q.wrong_members, (tube.no, group.no, tube.no, group.no))[0][0]:
        wrong.append(("its list of tasks is not theirs", "list them anew"))
    for what, remedy in wrong:
        yield Finding(tube.name, None, f"group {group.name}: {what}", remedy)
    if repair and wrong:
        _mend(link, tube, group, states, now)


def _mend(link: Link, tube: Tube, group: Group, states: Counter[str], now: int) -> None:
    left, state = states.total(), group.state
    if state in rules.OVER and left:
        state = rules.STARTED if state == rules.DONE else rules.CANCELLING
    if state == rules.OPEN:
        link.change(Q.hold_back, (tube.no, group.no))
    moving = state == rules.CANCELLING or (state == rules.STARTED and states[UNSTARTED] > 0)
    live = group.name if state in rules.LIVE else None
    until = group.until if state in rules.OVER else None
    link.change(Q.mend_group, (state, live, max(group.total, left), left, int(moving), until, group.no))
    link.change(Q.forget_members, (group.no,))
    link.change(Q.set_members, (tube.no, group.no))
    link.packet(f"CALL penstock_end_group({tube.no}, {group.no}, {now + tube.retention})")


def _mark(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    """A mark too many is no fault: whoever follows it takes it away."""
    for marked, moving in link.rows(Q.is_marked, (tube.no,)):
        if moving and not marked:
            yield Finding(tube.name, None, "the mark for groups whose tasks must follow is missing", "set it")
            if repair:
                link.change(Q.mark, (tube.no,))
