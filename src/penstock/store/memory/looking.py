"""What is read of a tube in memory: tasks by every selection of the port, and the facts for a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from heapq import nsmallest
from itertools import islice

from msgspec.structs import replace

from penstock.core.lifecycle import expired
from penstock.core.select import Deliveries, Find, Holders
from penstock.core.task import NO_UTUBE, QUEUED, Record
from penstock.engine import port
from penstock.store.memory.tube import TubeState

# public status -> stored states
_STATES = {"r": "rq", "~": "~g"}
# What a task in these states must have, or nothing ever ends the state: `engine.integrity`.
_NEEDED = {QUEUED: "utube", "~": "at", "g": "group_no"}


def load(tube: TubeState, select: port.Select, now: int) -> port.Loaded:
    """The selected tasks, with their groups."""
    records = list(_select(tube, select, now))
    numbers = {no for record in records if (no := record.group_no) in tube.groups and no is not None}
    if isinstance(select, port.Due):
        numbers |= tube.moving
    return port.Loaded(records, {no: replace(tube.groups[no]) for no in numbers})


def _select(tube: TubeState, select: port.Select, now: int) -> Iterable[Record]:
    records, by_state = tube.records, tube.by_state
    match select:
        case port.ByIds(ids):
            return [record for id in ids if (record := records.get(id)) is not None]
        case port.ByNames(names):
            return [record for name in names if (record := tube.named(name)) is not None]
        case port.Members(group, limit):
            return [records[id] for id in islice(tube.members.get(group, ()), limit)]
        case port.Page(after, limit, upto):
            return (records[id] for id in islice(tube.above(after, upto), limit))
        case port.Taken(after, limit):
            return _in_states(tube, "t", after, limit)
        case Find(None, after, limit):
            found = (records[id] for id in tube.above(after))
            return islice((record for record in found if not expired(record, now)), limit)
        case Find(status, after, limit):
            return _in_states(tube, _STATES.get(status or "", status or ""), after, limit, now)
        case Holders(utube, limit):
            taken = (records[key[-1]] for key in by_state["t"])
            own = (record for record in taken if record.utube == utube)
            return nsmallest(limit, own, key=lambda record: (record.taken or 0, record.id))
        case port.Due(limit):
            return [records[id] for at, id in islice(tube.timer, limit) if at <= now]
        case port.Buried(limit):
            return [records[key[-1]] for key in islice(by_state["!"], limit)]
        case port.Unstarted(group, limit):
            return [records[key[-1]] for key in islice(by_state["g"].within(group), limit)]
        case Deliveries(start, limit, delivered):
            keys = islice(by_state["t" if delivered else "r"], start, start + limit)
            return [records[key[-1]] for key in keys]


def _in_states(tube: TubeState, states: str, after: int, limit: int, now: int = 0) -> Iterable[Record]:
    """Tasks in one of these states that are not past their ttl, above an id, in order."""
    ids = tube.above(after)
    if "r" not in states and 2 * sum(len(tube.by_state[state]) for state in states) < tube.last_id - after:
        ids = sorted(key[-1] for state in states for key in tube.by_state[state] if key[-1] > after)
    found = (tube.records[id] for id in ids)
    return islice((record for record in found if record.state in states and not expired(record, now)), limit)


def audit(tube: TubeState, sessions: Collection[int]) -> port.Audit:
    """The facts of a tube; `sessions` are those that live."""
    leased, records = tube.tube.kind.leased, list(tube.records.values())
    members: dict[int, Counter[str]] = {}
    for record in records:
        if record.group_no is not None:
            members.setdefault(record.group_no, Counter())[record.state] += 1
    return port.Audit(
        states=Counter(record.state for record in records),
        stranded=[record for record in records if leased and _is_stranded(record)],
        orphans=[r for r in records if leased and r.state == "t" and (r.owner or 0) not in sessions],
        unsound=[] if leased else records,
        queues=_audit_queues(tube, records) if tube.tube.kind.per_utube else {},
        groups=[replace(group) for group in tube.groups.values()],
        members=dict(members),
        strays=[r for r in records if r.group_no is not None and r.group_no not in tube.groups],
        early=[record.id for record in records if record.id in tube.outcomes],
        newest=records[-1] if records else None,
        tally=tube.tally(),
    )


def _is_stranded(record: Record) -> bool:
    needed = _NEEDED.get(record.state)
    return record.state not in "rt!" if needed is None else getattr(record, needed) is None


def _audit_queues(tube: TubeState, records: Iterable[Record]) -> dict[str, port.QueueAudit]:
    found: dict[str, list[Record]] = {label: [] for label in tube.queues}
    for record in records:
        if record.state in "rqt":
            found.setdefault(record.utube or NO_UTUBE, []).append(record)
    audits = {}
    for label, own in found.items():
        row = tube.queues.get(label)
        here = Counter(record.state for record in own)
        ready = sorted((record for record in own if record.state != "t"), key=tube.queue_key)
        audits[label] = port.QueueAudit(
            counted=(here["t"], here["r"], here[QUEUED]),
            stored=(0, 0, 0) if row is None else row.counted,
            turn=0 if row is None else row.turn,
            ready=[(record.id, record.state) for record in ready],
        )
    return audits
