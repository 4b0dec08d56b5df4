"""What must be true of the stored data of a tube: problems of tasks, groups, micro-queues and counters.

`audit_of` collects the facts of one tube. `engine.integrity` applies the repairs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.ids import needed_mark, shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER, Counts
from penstock.core.task import UNSTARTED, Record
from penstock.core.transfer import TubeCounters

#: The problem with an outcome of a task that still exists, after the id.
EARLY_OUTCOME = "has an outcome, but is still in its tube", "forget the outcome"


# What is wrong: with which task, by id or name, or None; what; and its remedy.
Problem = tuple[int | str | None, str, str]


class Audit(msgspec.Struct, frozen=True):
    """What is stored in one tube, and what should be, computed from its tasks by `audit_of`.

    `states`: number of tasks by state. `wrong`: problems of single tasks, each with the repaired task. `orphans`: taken
    tasks of a leased kind whose session is gone. `queues`: counted and stored numbers of each micro-queue. `members`:
    number of tasks by state, for each group number.
    """

    states: Counter[str]
    wrong: list[tuple[Problem, Record]]
    orphans: list[Record]
    queues: dict[str, QueueAudit]
    groups: list[Group]
    members: defaultdict[int, Counter[str]]
    newest: Record | None
    counters: TubeCounters
    #: Other problems of derived data. `rebuild` repairs them.
    others: Sequence[Problem] = ()


class QueueAudit(msgspec.Struct, frozen=True):
    """One micro-queue: (taken, heads, waiting) counted and as stored, its turn, and its ready tasks in take order."""

    counted: tuple[int, int, int]
    stored: tuple[int, int, int]
    turn: int
    ready: list[tuple[int, str]]  # id and state


def audit_of(
    tube: Tube, records: Iterable[Record], *, sessions: Container[int | None], groups: list[Group],
    queues: Mapping[str, tuple[int, int, int, int]], counters: TubeCounters, others: Sequence[Problem],
) -> Audit:  # fmt: skip
    """Return the Audit of a tube, from its tasks in id order (payloads are not used) and what is stored besides them.

    `sessions`: those that may hold tasks. `queues`: taken, heads, waiting and turn of each micro-queue.
    """
    audit = Audit(Counter(), [], [], {}, groups, defaultdict(Counter), None, counters, others)
    numbers, newest = {group.no for group in groups}, None
    in_queues: dict[str, list[tuple[float, float, int, str]]] = {label: [] for label in queues}
    for record in records:
        state, newest = record.state, record
        audit.states[state] += 1
        audit.wrong.extend(_wrong(tube, record, numbers))
        if tube.kind.leased and state == "t" and record.owner not in sessions:
            audit.orphans.append(record)
        if record.group_no is not None:
            audit.members[record.group_no][state] += 1
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


def primary_problems(audit: Audit) -> list[Problem]:
    """Return what is wrong with tasks, leases and groups."""
    found = [problem for problem, _ in audit.wrong]
    found += [(record.id, "taken, but no live session holds it", "release it") for record in audit.orphans]
    for group in audit.groups:
        wrong = group_problems(group, audit.members[group.no])
        found += [(None, f"group {group.name}: {what}", remedy) for what, remedy in wrong]
    return found


def derived_problems(tube: Tube, audit: Audit) -> list[Problem]:
    """Return what is wrong with what is derived from the tasks."""
    queues, counters = queue_problems(tube, audit.queues), _counter_problems(audit.counters.counts, audit.states)
    return [*audit.others, *queues, *counters, *_last_mark(tube, audit)]


def group_problems(group: Group, states: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a group, compared with its stored tasks, counted by state."""
    left = states.total()
    if group.left != left:
        yield f"counts {group.left} tasks left, but has {left}", "correct the count"
    if group.total < left:
        yield f"counts {group.total} tasks put, but has {left}", "correct the count"
    if group.state in rules.OVER and left:
        yield f"is {group.state}, but has {left} tasks left", "reopen it"
    if group.state in (rules.STARTED, rules.CANCELLING) and not left:
        yield "should have ended", "end it"
    if group.state == rules.OPEN and (early := left - states[UNSTARTED] - states["!"]):
        yield f"is not started, but {early} of its tasks can be taken", "hold them back"
    waiting = states[UNSTARTED] if group.state == rules.STARTED else left if group.state == rules.CANCELLING else 0
    if waiting and not group.moving:
        yield f"{waiting} tasks do not have its state yet, and nothing changes them", "change them"


def repair_group(group: Group, states: Counter[str]) -> None:
    """Make a group agree with its stored tasks, counted by state: reopen it, or let its tasks follow its state."""
    group.left = states.total()
    group.total = max(group.total, group.left)
    if group.state in rules.OVER and group.left:
        group.state = rules.STARTED if group.state == rules.DONE else rules.CANCELLING
        group.until = None
    group.moving = group.state == rules.CANCELLING or (group.state == rules.STARTED and states[UNSTARTED] > 0)


def queue_problems(tube: Tube, queues: Mapping[str, QueueAudit]) -> Iterator[Problem]:
    """Yield what is wrong with micro-queues, compared with their tasks."""
    for label, queue in sorted(queues.items()) if tube.kind.per_utube else ():
        name, remedy = f"micro-queue {label or '(none)'}", "choose its heads again and correct its counts"
        if queue.stored != queue.counted:
            yield None, f"{name} counts {queue.stored}, but has {queue.counted}", remedy
        wanted = heads_wanted(tube, queue)
        if [state for _, state in queue.ready] != ["r"] * wanted + ["q"] * (len(queue.ready) - wanted):
            yield None, f"the first {wanted} ready tasks of {name}, and only these, must be takeable", remedy


def heads_wanted(tube: Tube, queue: QueueAudit) -> int:
    """Return how many ready tasks of a micro-queue should be takeable."""
    return min(max(tube.utube_limit - queue.counted[0], 0), len(queue.ready))


def true_counts(put: int, states: Mapping[str, int]) -> dict[str, int]:
    """Return the true counters of a tube, from the numbers of tasks put and of tasks stored in each state."""
    counts = dict.fromkeys(STATE_COUNTER.values(), 0)
    for state, number in states.items():
        counts[STATE_COUNTER.get(state, "ready")] += number
    return counts | {"done": put - sum(states.values())}


def _counter_problems(counts: Counts, states: Counter[str]) -> Iterator[Problem]:
    """Yield what is wrong with counters, compared with the stored tasks, counted by state."""
    for name, number in true_counts(counts.put, states).items():
        if (stored := getattr(counts, name)) != number:
            yield None, f"the counter {name} is {stored}, but should be {number}", f"set it to {number}"


def _last_mark(tube: Tube, audit: Audit) -> Iterator[Problem]:
    mark = needed_mark(audit.counters.mark, audit.newest) if tube.kind.hand_out == DELIVER else None
    if mark is not None:
        what = f"the stored last id is {shown_mark(audit.counters.mark)}, but there is {shown_mark(mark)}"
        yield None, what, "store the newest"


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
            what = f"is in state {record.state}, which its kind does not have"
        elif record.owner is not None:
            what = f"is held by session {record.owner}, but its kind has no leases"
        yield (record.address, what, "correct it"), sound
    if record.group_no is not None and record.group_no not in groups:
        if record.state == UNSTARTED:  # it becomes ready at the next advance
            record = replace(record, state="~", at=record.created)
        problem = record.id, "its group does not exist", "remove it from the group"
        yield problem, replace(record, group=None, group_no=None)


def _sound(tube: Tube, record: Record) -> Record:
    """Return a task of an unleased kind with the fields that the kind allows."""
    clocked = tube.kind.hand_out == CLOCK
    if record.state == "t" and not clocked:
        return replace(record, owner=None)
    return replace(record, state="r", owner=None, rank1=(record.taken or 0) if clocked else 0)
