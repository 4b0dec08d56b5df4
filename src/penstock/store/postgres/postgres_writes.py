"""Builds the writes of a step: new tasks, acks and flushes, each one transaction and one round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.ending import SUPERSEDED_MS, kept_under
from penstock.core.entry import are_alike, new_records, record_maker, stands_alone
from penstock.core.group import OVER
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.lifecycle import Move
from penstock.core.micro_queue import mark_queued
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, Entry, Record
from penstock.engine.port import CHANGED, Acked, Conflict, Delta, Flushed
from penstock.engine.port import Row as Changed
from penstock.errors import StoreError
from penstock.store.postgres.postgres_queries import WEIGHTS
from penstock.store.postgres.postgres_wire import Call, Row
from penstock.store.sql.sql_queries import ID_MASK
from penstock.store.sql.sql_step import RowClasses, first_pk, group_values

if TYPE_CHECKING:
    from penstock.store.postgres.postgres_step import PostgresStep
    from penstock.store.postgres.postgres_store import PostgresStore


def bounded(tube: Tube) -> bool:
    """Return whether ranks in a tube start at 0 and follow the ids, so that takes can start at a stored bound."""
    kind = tube.kind
    return kind.leased and not kind.per_utube and kind.order in (("id",), ("pri", "id")) and tube.aging is None


# new tasks


def _put_calls(
    step: PostgresStep, tube: Tube, entries: Sequence[Entry], capacity: int | None, *, alike: bool
) -> list[Call]:
    """Return the statement that stores these entries, and the statements that must follow it. Running them raises
    Conflict if the entries exceed the capacity."""
    kind, on, no, marked = tube.kind, step.on(tube), tube.no, tube.kind.hand_out == DELIVER
    some = entries[:1] if alike else entries  # one item is used for all rows
    columns = zip(*map(_columns, some), strict=True)
    values: dict[str, Any] = dict(zip(_COLUMNS, map(list, columns), strict=True))
    delayed = sum(entry.unstarted or entry.delay > 0 for entry in some) * (len(entries) // len(some))
    moments = [entry.delay or entry.ttl or 0 for entry in some if entry.delay or entry.ttl is not None]
    addresses = [entry.address for entry in entries if entry.address is not None]
    utubes = [entry.utube for entry in entries] if kind.per_utube else []
    queues = _counted(entry.utube for entry in entries if not (entry.unstarted or entry.delay)) if utubes else {}
    calls = [
        step.call(
            on.insert, tube=no, capacity=capacity, data=[entry.payload for entry in entries], utube=utubes,
            address=[entry.address for entry in entries], addressed=bool(addresses),
            # The unique index checks those of larger puts: looking them up first took a seventh of a put of 1,000.
            addresses=addresses if len(addresses) <= 50 else (),
            queues=list(queues), waits=list(queues.values()), queued=kind.per_utube, fair=tube.fair,
            ready=len(entries) - delayed, delayed=delayed, soonest=min(moments, default=None), later=SUPERSEDED_MS,
            timed=bounded(tube) and bool(moments),
            marked=marked, place=list(range(1, len(entries) + 1)) if marked else [], named=kind.hand_out == CLOCK,
            **({"process": None} if kind.per_utube and not delayed else {}), **values,
        )
    ]  # fmt: skip
    if kind.per_utube:
        calls.append(_heads(step, tube, queues))
    if capacity is not None:  # puts check the capacity one after the other
        calls.append(step.call(step.Q.lock_capacity, tube=no))
        calls.append(step.call(step.Q.admit, tube=no, capacity=capacity))
    return calls


_OPTIONS = ("ttl", "ttr", "delay", "pri", "extra", "reply_to", "group_no", "unstarted")
_TERMS = [(number, term) for number in "12" for term in ("base", "clock", "newest")]
_COLUMNS = (*_OPTIONS, "group_name", *(term + number for number, term in _TERMS))
_columns = attrgetter(*_OPTIONS, "group", *(f"rank{number}.{term}" for number, term in _TERMS))


def _heads(step: PostgresStep, tube: Tube, queues: Iterable[str], acked: Iterable[int] = ()) -> Call:
    values = {"tube": tube.no, "limit": tube.utube_limit, "fair": tube.fair}
    return step.call(step.on(tube).heads, queues=list(queues), acked=list(acked), **values)


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    """Return how often each micro-queue occurs, in locking order."""
    return dict(sorted(Counter(name or NO_UTUBE for name in names).items()))


def _stored(
    step: PostgresStep, tube: Tube, entries: Sequence[Entry], answers: list[list[Row]], *, alike: bool
) -> list[Record]:
    """Return the stored tasks, from the answers to `_put_calls`."""
    clock, pks, *marks = answers[0][0]
    step.note_clock(clock)
    records = new_records(entries, [pk & ID_MASK for pk in pks], clock, alike=alike)
    if tube.kind.per_utube:
        return mark_queued(records, answers[1][0][0])
    if tube.kind.hand_out == DELIVER:
        ms, seq, *_ = marks
        return [replace(record, address=shown_mark((ms, seq + place))) for place, record in enumerate(records, 1)]
    if tube.kind.hand_out == CLOCK:  # if the name of a reply is in use, the put is retried with another id
        return [replace(record, address=record.address or f"reply-{record.id}") for record in records]
    return records


def plain_put(database: PostgresStore, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
    """Return a function that stores one payload per call; None if the entry is not plain or cannot be prepared."""
    server, clock = database.server, database.clock
    if not stands_alone(tube, entry) or entry.ttl is not None or tube.temporary or not server.prepares:
        return None
    shape = {
        "tube": tube.no, "rank1": entry.rank1.base, "rank2": entry.rank2.base, "ttr": entry.ttr, "pri": entry.pri,
        "extra": entry.extra, "data": b"", "process": None, "now": None,
    }  # fmt: skip
    call, make = database.queries.durable.put_plain.call(shape), record_maker(entry)
    data, process, now = map(call.query.names.index, ("data", "process", "now"))

    def put(payload: bytes) -> Record | None:
        values, sender = call.values.copy(), server.sender
        values[data] = payload
        values[process] = sender and sender.encode()
        values[now] = clock and b"%d" % clock()
        try:
            rows = server.send([Call(call.query, values, call.formats)])[0]
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            return None  # nextval fails if the tube was hidden just now: the general put finds out
        if not rows:
            return None
        database.fold_sometimes(tube)
        id, created, _ = rows[0]
        return make(id, created, payload)

    return put


# acks


def ack(step: PostgresStep, tube: Tube, moves: Sequence[Move]) -> Acked:
    """Ack tasks that need no rule of core."""
    on, queued, calls, base = step.on(tube), tube.kind.per_utube, step.locks(tube), first_pk(tube)
    values: dict[str, Any] = {"tube": tube.no, "limited": tube.capacity is not None}
    if not tube.kind.leased:
        return _acked(step, tube, [*calls, step.call(on.ack_named, texts=[move.name for move in moves], **values)])
    held = sorted((move for move in moves if 0 < move.id <= ID_MASK), key=attrgetter("id"))
    seen = [move.seen.utube for move in held if move.seen is not None]
    if not held or (queued and (held[0].verb == "delete" or len(seen) < len(held))):
        return Acked(set())
    if held[0].verb == "delete":
        return _acked(step, tube, [*calls, step.call(on.delete, key=base | held[0].id, **values)])
    pks = [base | move.id for move in held]
    values |= {
        "key": pks, "held": [move.lease or 0 for move in held], "session": [move.session for move in held],
        "result": [move.result for move in held], "retention": tube.retention, **_groups_of(held, base),
    }  # fmt: skip
    queues = _counted(seen) if queued else {}
    calls.append(step.call(on.ack, queues=list(queues), **values))
    if queued:
        calls.append(_heads(step, tube, queues, queues.values()))
    try:
        answers = step.run(calls)
    except Conflict:
        return Acked(set())
    acked, kept, *_ = answers[0][0]
    step.count_changes(tube)
    readied = answers[1][0][0] if queued else 0
    return Acked({pk & ID_MASK for pk in acked or ()}, readied, [pk & ID_MASK for pk in kept or ()])


def _acked(step: PostgresStep, tube: Tube, calls: list[Call]) -> Acked:
    rows = step.run(calls)[-1]
    step.count_changes(tube)
    return Acked({row[0] for row in rows})


def _groups_of(moves: Sequence[Move], base: int) -> dict[str, list[int]]:
    """Return the groups of these tasks by number, how many of the tasks are in each, and the last one of each. Empty
    unless every move has a copy of its task."""
    seen = [None if move.seen is None else move.seen.group_no or 0 for move in moves]
    if None in seen or seen.count(0) == len(seen):
        return {"groups": [], "members": [], "lasts": []}
    members, lasts = Counter(seen), {no: base | move.id for no, move in zip(seen, moves, strict=True)}
    groups = sorted(no for no in members if no)
    return {"groups": groups, "members": [members[no] for no in groups], "lasts": [lasts[no] for no in groups]}


# decisions


def flush(step: PostgresStep, delta: Delta) -> Flushed:
    """Write a Delta. Statements that lock tasks come first; groups, on which many calls contend, come last."""
    tube, works = delta.tube, delta.works
    opening, calls = step.locks(tube, *(other for other, _ in works)), list[Call]()
    queues = _queues(delta)
    if delta.rows:
        calls.append(_rows_call(step, delta, queues))
        if queues:
            calls.append(_heads(step, tube, queues))
    puts: list[tuple[int, Tube, list[Entry], bool]] = []
    for place, (into, entries) in enumerate(((tube, delta.fresh), *works)):
        if entries:
            puts.append((len(calls), into, entries, alike := are_alike(entries)))
            calls += _put_calls(step, into, entries, tube.capacity if place == 0 else None, alike=alike)
    if delta.erase_upto is not None:
        base = first_pk(tube)
        calls.append(step.call(step.on(tube).erase, low=base, high=base | delta.erase_upto))
    calls += [step.call(step.Q.change_group, tube=tube.no, **group_values(group)) for group in delta.groups]
    calls += _notify_call(step, delta)
    answers = step.run([*opening, *calls], safe=step.skips_locked and not delta.all_or_nothing)
    flushed = Flushed()
    if delta.rows:
        clock, pks, *_ = answers[0][0]
        step.note_clock(clock)
        changed = {pk & ID_MASK for pk in pks or ()}
        step.applied_some = step.applied_some or (step.skips_locked and bool(changed))
        flushed.note_rows(delta, changed, answers[1][0][0] if queues else None)
    for at, into, entries, alike in puts:
        records = _stored(step, into, entries, answers[at:], alike=alike)
        flushed.note_new(delta, into, entries, records, sum(record.state == "r" for record in records))
    step.count_changes(tube)
    return flushed


def _rows_call(step: PostgresStep, delta: Delta, queues: list[str]) -> Call:
    tube, on, queued, base = delta.tube, step.on(delta.tube), delta.tube.kind.per_utube, first_pk(delta.tube)
    rows = sorted(delta.rows, key=lambda row: row.before.id)
    before, after = [row.before for row in rows], [row.after for row in rows]
    classes = RowClasses(rows)
    addresses = [
        kept_under(row.before.address, row.ending) if row.after.state == "-" and tube.kind.leased else None
        for row in rows
    ]
    endings = [None if address is None else row.ending for row, address in zip(rows, addresses, strict=True)]
    rewritten = [row.after if _rewritten(row) else None for row in rows]
    columns: dict[str, list[Any]] = {
        "key": [base | record.id for record in before],
        "was": ["r" if record.state == "q" else record.state for record in before],
        "held": [record.lease for record in before],
        "due": [record.at for record in before],
        "rank": [record.rank1 for record in before],
        "until": [row.until for row in rows],
        "class": classes.of_rows,
        **{field: [getattr(record, field) for record in after] for field in CHANGED},
        "state": ["q" if queued and record.state in "rq" else record.state for record in after],
        "errors": [record.errors if row.error else None for row, record in zip(rows, after, strict=True)],
        "known": [True if record.errors is not None else None for record in before],
        "address": addresses,
    }
    for field in ("rank1", "rank2", "pri", "created", "payload"):
        columns[field] = [record and getattr(record, field) for record in rewritten]
    for field in ("status", "result", "error", "code"):
        columns[field] = [ending and getattr(ending, field) for ending in endings]
    return step.call(
        on.flush, tube=tube.no, fair=tube.fair, retention=tube.retention, whole=delta.all_or_nothing, queues=queues,
        kept=any(address is not None for address in addresses), bounded=bounded(tube),
        weights=[weights[name] for weights in classes.weights for name in WEIGHTS], **columns,
    )  # fmt: skip


def _rewritten(row: Changed) -> bool:
    """Return whether the content of a task was replaced."""
    return row.after.created != row.before.created or row.after.payload is not row.before.payload


def _queues(delta: Delta) -> list[str]:
    """Return the micro-queues that a Delta touches, in locking order; none if the tube has none."""
    if not delta.tube.kind.per_utube:
        return []
    rows = [row.before.utube for row in delta.rows]
    into = [entries for tube, entries in ((delta.tube, delta.fresh), *delta.works) if tube.no == delta.tube.no]
    return list(_counted([*rows, *(entry.utube for entries in into for entry in entries)]))


def _notify_call(step: PostgresStep, delta: Delta) -> list[Call]:
    """Return the notification for tasks that may have become takeable or ended; none within 10 ms of the last one. New
    tasks and heads send their own."""
    tube, rows = delta.tube, delta.rows
    ready = any(row.after.state == "~" or (row.after.state == "r" and not tube.kind.per_utube) for row in rows)
    ended = any(kept_under(row.before.address, row.ending) is not None for row in rows)
    ended = ended or any(row.after.state in OVER for row in delta.groups)
    room = tube.capacity is not None and any(row.after.state == "-" for row in rows)
    if step.db.server.sender is None or not (room or ready or ended):
        return []
    return [step.call(step.Q.notify, tube=tube.no, always=room, ready=ready, ended=ended)]
