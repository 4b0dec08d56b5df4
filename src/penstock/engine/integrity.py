"""Check of a tube: reports states that must not exist (`core.audit`) and, on request, repairs them.

Repairs come in the order of findings: states, leases and groups, then what is derived from the tasks, such as
micro-queues and counters.
"""

from __future__ import annotations

from penstock.core import group as rules
from penstock.core.audit import Audit, derived_problems, group_problems, primary_problems, repair_group
from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.results import Effects, Finding
from penstock.engine.port import ByIds, Members, Step
from penstock.engine.work import Work


def check_tube(step: Step, tube: Tube, *, repair: bool) -> list[Finding]:
    """Return the findings of one tube. With `repair`, repair each."""
    audit = step.audit(tube)
    found = primary_problems(audit)
    if found and repair:
        _repair(step, tube, audit)
        audit = step.audit(tube)
    derived = derived_problems(tube, audit)
    if repair and (derived or found):
        step.rebuild(tube, audit)
    return [Finding(tube.name, id, what, remedy) for id, what, remedy in found + derived]


def _repair(step: Step, tube: Tube, audit: Audit) -> None:
    """Repair the primary problems of an audit."""
    for _, repaired in audit.wrong:
        step.restore(tube, repaired)
    work = Work(step, tube, Effects())
    if audit.orphans:
        held = work.load(ByIds([record.id for record in audit.orphans]))
        work.change_each(held, lambda record: came_back(record, step.now, "release"))
    for found in audit.groups:
        states = audit.members[found.no]
        group = work.group(found.no) if any(group_problems(found, states)) else None
        if group is None:
            continue
        repair_group(group, states)
        if group.state == rules.OPEN:
            for record in work.load(Members(group.no, group.left)):
                if record.state in "rq~":
                    work.change(record, rules.held_back(record))
        work.end_group(group)
        work.flush()
