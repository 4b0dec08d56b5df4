"""What is read of one tube in memory: tasks by every selection of the port, and the facts for a check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from heapq import nsmallest
from itertools import islice, takewhile

from msgspec.structs import replace

from penstock.core.lifecycle import expired
from penstock.core.task import QUEUED, UNSTARTED, Record
from penstock.engine import port
from penstock.store.memory.tube import TubeState

# public status -> stored states
_STATES = {"r": "rq", "~": "~g"}
_AHEAD_LIMIT = 1000


def load(tube: TubeState, select: port.Select, now: int) -> port.Loaded:
    """What is selected, with the groups of it."""
    records = _select(tube, select, now)
    if not tube.groups:
        return port.Loaded(records, {})
    numbers = {no for record in records if (no := record.group_no) is not None and no in tube.groups}
    if isinstance(select, port.Due):
        numbers |= tube.moving
    return port.Loaded(records, {no: replace(tube.groups[no]) for no in numbers})


def _select(tube: TubeState, select: port.Select, now: int) -> list[Record]:
    records = tube.records
    match select:
        case port.ByIds():
            return [record for id in select.ids if (record := records.get(id)) is not None]
        case port.ByNames():
            return [record for name in select.names if (record := tube.named(name)) is not None]
        case port.Due():
            return [records[id] for _, id in tube.timer.head(select.limit, (now, tube.last_id))]
        case port.Taken():
            return _page(tube, select.after, select.limit, lambda record: record.state == "t", tube.by_state["t"])
        case port.Buried():
            return [records[key[2]] for key in tube.buried.head(select.limit)]
        case port.Members():
            return [records[id] for id in islice(tube.members.get(select.group, ()), select.limit)]
        case port.Unstarted():
            waiting = tube.unstarted.get(select.group)
            return [] if waiting is None else [records[key[2]] for key in waiting.head(select.limit)]
        case port.Page():
            found = (records[id] for id in tube.above(select.after, select.upto))
            wanted = (record for record in found if not select.replying or record.reply_to is not None)
            return list(islice(wanted, select.limit))
        case port.Find():
            return _find(tube, select, now)
        case port.Holders():
            taken = (records[id] for id in tube.by_state["t"])
            own = (record for record in taken if record.utube == select.utube)
            return nsmallest(select.limit, own, key=lambda record: (record.taken or 0, record.id))
        case port.Deliveries():
            keys = (tube.delivered if select.delivered else tube.ready).in_order()
            return [records[key[2]] for key in islice(keys, select.start, select.start + select.limit)]


def _page(
    tube: TubeState, after: int, limit: int, wanted: Callable[[Record], bool], among: Collection[int] | None
) -> list[Record]:
    """The tasks above an id that are wanted, in order. `among` has the ids of all of these, where they are known."""
    ids: Iterable[int] = tube.above(after)
    if among is not None and 2 * len(among) < tube.last_id - after:
        ids = sorted(id for id in among if id > after)
    return list(islice(filter(wanted, map(tube.records.__getitem__, ids)), limit))


def _find(tube: TubeState, select: port.Find, now: int) -> list[Record]:
    if select.status is None:
        return _page(tube, select.after, select.limit, lambda record: not expired(record, now), None)
    states = _STATES.get(select.status, select.status)
    known = [tube.by_state[state] for state in states if state in tube.by_state]
    among = set().union(*known) if known else None
    return _page(tube, select.after, select.limit, lambda r: r.state in states and not expired(r, now), among)


def ahead(tube: TubeState, record: Record) -> int:
    """How many takeable tasks come before this one, up to a limit."""
    place = (record.rank1, record.rank2, record.id)
    return sum(1 for _ in islice(takewhile(lambda key: key < place, tube.ready.in_order()), _AHEAD_LIMIT))


def audit(tube: TubeState, sessions: Collection[int]) -> port.Audit:
    """The facts of a tube; `sessions` are those that live."""
    leased, records = tube.tube.kind.leased, list(tube.records.values())
    members: dict[int, dict[str, int]] = {}
    for record in records:
        if record.group_no is not None:
            states = members.setdefault(record.group_no, {})
            states[record.state] = states.get(record.state, 0) + 1
    return port.Audit(
        states=Counter(record.state for record in records),
        stranded=[record for record in records if leased and _is_stranded(record)],
        orphans=[r for r in records if leased and r.state == "t" and (r.owner or 0) not in sessions],
        unsound=[] if leased else records,
        queues=_audit_queues(tube, records),
        groups=[replace(group) for group in tube.groups.values()],
        members=members,
        strays=[r for r in records if r.group_no is not None and r.group_no not in tube.groups],
        early=[record.id for record in records if tube.outcomes.has(record.id)],
        newest=records[-1] if records else None,
        tally=tube.tally(),
    )


def _is_stranded(record: Record) -> bool:
    """`core.soundness` says what this means."""
    needs = {QUEUED: record.utube, "~": record.at, UNSTARTED: record.group_no}
    return record.state not in "rt!" and needs.get(record.state) is None


def _audit_queues(tube: TubeState, records: Iterable[Record]) -> dict[str, port.QueueAudit]:
    queues = tube.queues
    if queues is None:
        return {}
    found: dict[str, list[Record]] = {name: [] for name in queues.by_name}
    for record in records:
        if record.state in "rqt":
            found.setdefault(record.utube or "", []).append(record)
    audits = {}
    for name, own in found.items():
        stored = queues.by_name.get(name)
        here = Counter(record.state for record in own)
        ready = sorted((record for record in own if record.state != "t"), key=queues.key)
        audits[name] = port.QueueAudit(
            counted=(here["t"], here["r"], here[QUEUED]),
            stored=(0, 0, 0) if stored is None else (stored.taken, len(stored.heads), stored.waiting),
            turn=0 if stored is None else stored.turn,
            ready=[(record.id, record.state) for record in ready],
        )
    return audits
