"""Cross-checks of everything stored: find, report and, on request, repair states that must not exist.

Findings come in the order in which they must be repaired: states, leases and groups, then what is derived from the
tasks, such as micro-queues and counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.ids import needed_mark, shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER, Counts, Effects, Finding
from penstock.core.task import UNSTARTED, Record
from penstock.core.transfer import TubeCounters
from penstock.engine.port import Audit, ByIds, Members, Problem, QueueAudit, Step
from penstock.engine.work import Work

#: The problem with an outcome of a task that still exists, after the id.
EARLY_OUTCOME = "has an outcome, but is still there", "forget the outcome"


def check_tube(step: Step, tube: Tube, *, repair: bool) -> list[Finding]:
    """Return the findings of one tube. With `repair`, repair each."""
    audit = step.audit(tube)
    found = [
        *_tasks(step, tube, audit, repair),
        *_orphans(step, tube, audit, repair),
        *_groups(step, tube, audit, repair),
    ]
    if found and repair:
        audit = step.audit(tube)
    counted = counter_problems(audit.counters.counts, audit.states)
    derived = [*audit.others, *queue_problems(tube, audit.queues), *counted, *_last_mark(tube, audit)]
    if repair and (derived or found):
        step.rebuild(tube, audit)
    return [Finding(tube.name, id, what, remedy) for id, what, remedy in found + derived]


def audit_of(
    tube: Tube, records: Iterable[Record], *, sessions: Container[int | None], groups: list[Group],
    queues: Mapping[str, tuple[int, int, int, int]], counters: TubeCounters, others: Sequence[Problem],
) -> Audit:  # fmt: skip
    """Return the Audit of a tube from its tasks, in id order, whose payloads are not read, and from what is stored
    beside them. `sessions`: those that may hold tasks. `queues`: taken, heads, waiting and turn of each micro-queue."""
    audit = Audit(Counter(), [], [], {}, groups, {}, None, counters, others)
    numbers, newest = {group.no for group in groups}, None
    in_queues: dict[str, list[tuple[float, float, int, str]]] = {label: [] for label in queues}
    for record in records:
        state, newest = record.state, record
        audit.states[state] += 1
        audit.wrong.extend(_wrong(tube, record, numbers))
        if tube.kind.leased and state == "t" and record.owner not in sessions:
            audit.orphans.append(record)
        if record.group_no is not None:
            audit.members.setdefault(record.group_no, Counter())[state] += 1
        if tube.kind.per_utube and record.utube is not None and state in "rqt":
            place = record.rank1, 0 if tube.fair else record.rank2, record.id, state
            in_queues.setdefault(record.utube, []).append(place)
    audits = {label: _audit_queue(found, *queues.get(label, (0, 0, 0, 0))) for label, found in in_queues.items()}
    return replace(audit, newest=newest, queues=audits)


def _audit_queue(
    found: list[tuple[float, float, int, str]], taken: int, heads: int, waiting: int, turn: int
) -> QueueAudit:
    states = Counter(state for *_, state in found)
    ready = [(id, state) for *_, id, state in sorted(found) if state != "t"]
    return QueueAudit((states["t"], states["r"], states["q"]), (taken, heads, waiting), turn, ready)


def _tasks(step: Step, tube: Tube, audit: Audit, repair: bool) -> Iterator[Problem]:
    for problem, repaired in audit.wrong:
        yield problem
        if repair:
            step.restore(tube, repaired)


def _orphans(step: Step, tube: Tube, audit: Audit, repair: bool) -> Iterator[Problem]:
    for record in audit.orphans:
        yield record.id, "taken, but no live session holds it", "release it"
    if repair and audit.orphans:
        work = Work(step, tube, Effects())
        held = work.load(ByIds([record.id for record in audit.orphans]))
        work.change_each(held, lambda record: came_back(record, step.now, "release"))


def _groups(step: Step, tube: Tube, audit: Audit, repair: bool) -> Iterator[Problem]:
    for group in audit.groups:
        states = audit.members.get(group.no, Counter())
        wrong = list(group_problems(group, states))
        for what, remedy in wrong:
            yield None, f"group {group.name}: {what}", remedy
        if repair and wrong:
            repair_group(step, tube, group.no, states)


def group_problems(group: Group, states: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a group, compared with its stored tasks, counted by state."""
    left = states.total()
    if group.left != left:
        yield f"says {group.left} tasks are left, there are {left}", "count them again"
    if group.total < left:
        yield f"says {group.total} tasks were put, there are {left}", "count them again"
    if group.state in rules.OVER and left:
        yield f"is {group.state}, but has {left} tasks left", "reopen it"
    if group.state in (rules.STARTED, rules.CANCELLING) and not left:
        yield "should have ended", "end it"
    if group.state == rules.OPEN and (early := left - states[UNSTARTED] - states["!"]):
        yield f"is not started, but {early} of its tasks can be taken", "hold them back"
    waiting = states[UNSTARTED] if group.state == rules.STARTED else left if group.state == rules.CANCELLING else 0
    if waiting and not group.moving:
        yield f"{waiting} tasks do not follow its record", "let them follow"


def repair_group(step: Step, tube: Tube, no: int, states: Counter[str]) -> None:
    """Make a group agree with its tasks, counted by state: end it, reopen it, or let its tasks follow its state."""
    work = Work(step, tube, Effects())
    group = work.group(no)
    if group is None:
        return
    group.left = states.total()
    group.total = max(group.total, group.left)
    if group.state in rules.OVER and group.left:
        group.state = rules.STARTED if group.state == rules.DONE else rules.CANCELLING
        group.until = None
    group.moving = group.state == rules.CANCELLING or (group.state == rules.STARTED and states[UNSTARTED] > 0)
    if group.state == rules.OPEN:
        for record in work.load(Members(no, group.left)):
            if record.state in "rq~":
                work.change(record, rules.held_back(record))
    work.end_group(group)
    work.flush()


def queue_problems(tube: Tube, queues: Mapping[str, QueueAudit]) -> Iterator[Problem]:
    """Yield what is wrong with micro-queues, compared with their tasks."""
    for label, queue in sorted(queues.items()) if tube.kind.per_utube else ():
        name, remedy = f"micro-queue {label or '(none)'}", "set its heads and numbers again"
        if queue.stored != queue.counted:
            yield None, f"{name} counts {queue.stored}, there are {queue.counted}", remedy
        wanted = heads_wanted(tube, queue)
        if [state for _, state in queue.ready] != ["r"] * wanted + ["q"] * (len(queue.ready) - wanted):
            yield None, f"{name} must have its first {wanted} ready tasks takeable and has not", remedy


def heads_wanted(tube: Tube, queue: QueueAudit) -> int:
    """Return how many ready tasks of a micro-queue should be takeable."""
    return min(max(tube.utube_limit - queue.counted[0], 0), len(queue.ready))


def true_counts(put: int, states: Mapping[str, int]) -> dict[str, int]:
    """Return the true counters of a tube, from the numbers of tasks put and of tasks stored in each state."""
    counts = dict.fromkeys(STATE_COUNTER.values(), 0)
    for state, number in states.items():
        counts[STATE_COUNTER.get(state, "ready")] += number
    return counts | {"done": put - sum(states.values())}


def counter_problems(counts: Counts, states: Counter[str]) -> Iterator[Problem]:
    """Yield what is wrong with counters, compared with the stored tasks, counted by state."""
    for name, number in true_counts(counts.put, states).items():
        if (stored := getattr(counts, name)) != number:
            yield None, f"the counter {name} says {stored}, and it should be {number}", f"set it to {number}"


def _last_mark(tube: Tube, audit: Audit) -> Iterator[Problem]:
    mark = needed_mark(audit.counters.mark, audit.newest) if tube.kind.hand_out == DELIVER else None
    if mark is not None:
        what = f"the last id is kept as {shown_mark(audit.counters.mark)}, there is {shown_mark(mark)}"
        yield None, what, "keep the newest"


def _wrong(tube: Tube, record: Record, groups: Container[int]) -> Iterator[tuple[Problem, Record]]:
    """Yield each problem of a task, and the task after the repair of this problem and those before it."""
    if tube.kind.leased:
        # A task can never become ready if it waits for a micro-queue, a time or a group that it does not have.
        queue = tube.kind.per_utube or None
        waits_for = {"q": queue and record.utube, "~": record.at, "g": record.group_no, "r": 0, "t": 0, "!": 0}
        if waits_for.get(record.state) is None:
            problem = record.id, f"in state {record.state}, which nothing ends", "make it ready"
            record = replace(record, state="r", owner=None, at=record.expires)
            yield problem, record
    elif (sound := _sound(tube, record)) != record:
        what = "is not where its last hand-out put it"
        if sound.state != record.state:
            what = f"is in state {record.state}, which its kind has not"
        elif record.owner is not None:
            what = f"is held by session {record.owner}, but its kind has no leases"
        yield (record.address, what, "put it right"), sound
    if record.group_no is not None and record.group_no not in groups:
        if record.state == UNSTARTED:  # it becomes ready at the next advance
            record = replace(record, state="~", at=record.created)
        problem = record.id, "its group is not there", "take it out of the group"
        yield problem, replace(record, group=None, group_no=None)


def _sound(tube: Tube, record: Record) -> Record:
    """Return a task of an unleased kind with the fields that the kind allows."""
    clocked = tube.kind.hand_out == CLOCK
    if record.state == "t" and not clocked:
        return replace(record, owner=None)
    return replace(record, state="r", owner=None, rank1=(record.taken or 0) if clocked else 0)
