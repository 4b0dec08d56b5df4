"""What is written: new tasks, acks, and what was decided, each as one transaction in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.ending import SUPERSEDED_MS, kept_under
from penstock.core.entry import new_record, record_maker, stands_alone
from penstock.core.group import OVER
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.lifecycle import UNDONE, Move
from penstock.core.options import Tube
from penstock.core.refusals import tube_full
from penstock.core.results import STATE_COUNTER
from penstock.core.task import NO_UTUBE, Entry, Record
from penstock.engine.port import CHANGED, Acked, Conflict, Delta, Flushed, GroupRow
from penstock.engine.port import Row as Changed
from penstock.errors import StoreError
from penstock.store.postgres.schema import ENTRY_FIELDS, WEIGHTS
from penstock.store.postgres.wire import Call, Packed, Row
from penstock.store.sql.queries import ID_MASK
from penstock.store.sql.step import first_pk

if TYPE_CHECKING:
    from penstock.store.postgres.database import PostgresStore
    from penstock.store.postgres.step import PostgresStep


def bounded(tube: Tube) -> bool:
    """Whether all tasks of a tube rank from 0 on, in the order of their ids, so that takes know where to begin."""
    kind = tube.kind
    return kind.leased and not kind.per_utube and kind.order in (("id",), ("pri", "id")) and tube.aging is None


# new tasks


def insert(step: PostgresStep, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
    """Store tasks in order; TubeFull where there is no room."""
    if not entries:
        return []
    opening = step.opened(tube)
    try:
        found = step.run([*opening, *_put_calls(step, tube, entries, tube.capacity)])[len(opening)]
    except Conflict:
        stored = 0 if tube.capacity is None else step.counters(tube).counts.stored
        if tube.capacity is not None and stored + len(entries) > tube.capacity:
            raise tube_full(tube, stored, len(entries)) from None
        raise
    if not found:
        raise step.no_such_tube(tube)
    if found[0][5] is None:
        raise tube_full(tube, found[0][1], len(entries))
    step.count_changes()
    return _stored(step, tube, entries, found[0])


def _put_calls(
    step: PostgresStep, tube: Tube, entries: Sequence[Entry], capacity: int | None, *, strict: bool = False
) -> list[Call]:
    """The statement that stores these, and what must follow it. With `capacity`, it refuses what it sees no room for;
    if `strict`, as a conflict."""
    kind = tube.kind
    mixed, fields = _fields(entries)
    name = ("insert_queued" if kind.per_utube else "insert") + ("_mixed" if mixed else "")
    calls = [
        step.call(
            getattr(step.on(tube), name), tube=tube.no, process=step.db.notifier.name, capacity=capacity,
            limit=tube.utube_limit, fair=tube.fair, marked=kind.hand_out == DELIVER, named=kind.hand_out == CLOCK,
            strict=strict and capacity is not None, **fields,
        )
    ]  # fmt: skip
    if kind.per_utube and kind.order[0] != "id":  # else an arrival overtakes nobody
        calls.append(_heads(step, tube))
    addresses = [entry.address for entry in entries if entry.address is not None]
    if addresses and kind.leased:
        calls.append(step.call(step.Q.supersede, tube=tube.no, texts=addresses, later=SUPERSEDED_MS))
    if capacity is not None:  # one caller after the other looks whether the tube holds no more than it may
        calls.append(step.call(step.Q.lock_capacity, tube=tube.no))
        calls.append(step.call(step.Q.admit, tube=tube.no, capacity=capacity))
    return calls


def _heads(step: PostgresStep, tube: Tube) -> Call:
    return step.call(step.on(tube).heads, tube=tube.no, limit=tube.utube_limit, fair=tube.fair)


def _stored(step: PostgresStep, tube: Tube, entries: Sequence[Entry], row: Row) -> list[Record]:
    """The tasks as they were stored."""
    clock, _, notified, _, _, ids, ms, seq, states, ranks = row
    step.heard(clock)
    if notified:
        step.db.notifier.sent()
    records = [new_record(entry, id, clock) for entry, id in zip(entries, ids, strict=True)]
    if states is not None:
        placed = zip(records, states, ranks, strict=True)
        return [replace(record, state=state, rank2=rank2) for record, state, rank2 in placed]
    if ms is not None:
        return [replace(record, address=shown_mark((ms, seq + place))) for place, record in enumerate(records, 1)]
    if tube.kind.hand_out == CLOCK:
        return [replace(record, address=record.address or f"reply-{record.id}") for record in records]
    return records


_shape = attrgetter(
    "rank1", "rank2", "pri", "utube", "ttl", "ttr", "delay", "extra", "reply_to", "group",
    "group_no", "unstarted",
)  # fmt: skip


def _fields(entries: Sequence[Entry]) -> tuple[bool, dict[str, Any]]:
    """Whether entries differ in some fields; and each field once, where all entries have the same, else as a list."""
    values: dict[str, Any] = {"datas": [entry.payload for entry in entries]}
    values["addresses"] = _column([entry.address for entry in entries])
    shapes = [_shape(entry) for entry in entries]
    mixed = shapes.count(shapes[0]) < len(shapes)
    if not mixed:
        del shapes[1:]
    fields = [
        (one.base, one.clock, one.newest, two.base, two.clock, two.newest, *others) for one, two, *others in shapes
    ]
    for name, column in zip(ENTRY_FIELDS, zip(*fields, strict=True), strict=True):
        same = column.count(column[0]) == len(column)
        values[name], values[f"{name}s"] = (column[0], []) if same else (None, list(column))
    return mixed, values


def plain_put(database: PostgresStore, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
    """Stores a payload each time it is called; None where its place depends on more, or nothing can be prepared."""
    connections, notifier, clock = database.connections, database.notifier, database.clock
    if not stands_alone(tube, entry) or entry.ttl is not None or tube.temporary or not connections.prepares:
        return None
    query, lives_query, make = database.queries.durable.put_plain, database.queries.all.tube_lives, record_maker(entry)
    shape = {
        "tube": tube.no, "rank1": entry.rank1.base, "rank2": entry.rank2.base, "ttr": entry.ttr, "pri": entry.pri,
        "extra": entry.extra, "data": None, "process": None, "now": None,
    }  # fmt: skip
    packed = Packed(query, shape)

    def put(payload: bytes) -> Record | None:
        values = packed.replace(data=payload, process=notifier.name, now=None if clock is None else clock())
        try:
            rows = connections.run([(query, values)])[0]
        except StoreError as error:  # nextval fails if the tube was hidden just now
            lives = type(error) is not StoreError or connections.run([(lives_query, {"tube": tube.no})], twice=True)[0]
            if lives:
                raise
            return None
        if not rows:
            return None
        id, created, notified = rows[0]
        if notified is not None:
            notifier.sent()
        database.fold_sometimes()
        return make(id, created, payload)

    return put


# acks


def ack(step: PostgresStep, tube: Tube, moves: Sequence[Move]) -> Acked:
    """Ack what needs no rule."""
    on, queued, calls = step.on(tube), tube.kind.per_utube, step.opened(tube)
    at = len(calls)
    values: dict[str, Any] = {"tube": tube.no, "process": step.db.notifier.name, "bounded": tube.capacity is not None}
    if not tube.kind.leased:
        calls.append(step.call(on.ack_named, texts=[move.name for move in moves], **values))
        acked = Acked({row[0] for row in step.run(calls)[at]})
        step.count_changes()
        return acked
    held = sorted((move for move in moves if 0 < move.id <= ID_MASK), key=attrgetter("id"))
    if not held:
        return Acked(set())
    base = first_pk(tube)
    values |= {
        "pks": [base | move.id for move in held], "leases": [move.lease or 0 for move in held],
        "sessions": [move.session for move in held], "results": _column([move.result for move in held]),
        "retention": tube.retention, "fair": tube.fair,
    }  # fmt: skip
    calls.append(step.call(on.ack_queued if queued else on.ack, **values))
    if queued:
        calls += [_heads(step, tube), *step.notify_call(tube, ready=True)]
    answers = step.run(calls)[at:]
    gone, kept, notified, *_ = answers[0][0]
    if notified or (len(answers) > 2 and answers[2]):
        step.db.notifier.sent()
    step.count_changes()
    return Acked(
        {pk & ID_MASK for pk in gone or ()}, answers[1][0][0] if queued else 0, [pk & ID_MASK for pk in kept or ()]
    )


# decisions


def flush(step: PostgresStep, delta: Delta) -> Flushed:
    """Write a decision. What locks tasks comes first, and groups, which many share, last."""
    tube, works = delta.tube, delta.works
    calls = step.opened(tube, *(other for other, _ in works))
    if delta.whole:
        calls.append(step.call(step.Q.must_live, tubes=sorted({tube.no, *(other.no for other, _ in works)})))
    if delta.rows:
        calls += _lowered(step, tube, delta.rows)
    rows_at = len(calls)
    if delta.rows:
        calls.append(_rows_call(step, delta))
        if tube.kind.per_utube:
            calls.append(_heads(step, tube))
    puts: list[tuple[int, Tube, list[Entry]]] = []
    for place, (into, entries) in enumerate(((tube, delta.fresh), *works)):
        if entries:
            puts.append((len(calls), into, entries))
            calls += _put_calls(step, into, entries, tube.capacity if place == 0 else None, strict=True)
    if delta.erase_upto is not None:
        base = first_pk(tube)
        calls.append(step.call(step.on(tube).erase, low=base, high=base | delta.erase_upto))
    if delta.groups:
        calls.append(_groups_call(step, delta.groups))
    notify_at = len(calls)
    calls += _notify_call(step, delta)
    answers = step.run(calls, twice=step.passing and not delta.whole)
    flushed = Flushed()
    if delta.rows:
        clock, pks, *_ = answers[rows_at][0]
        step.heard(clock)
        changed = {pk & ID_MASK for pk in pks or ()}
        step.moved = step.moved or (step.passing and bool(changed))
        flushed.missed = {row.before.id for row in delta.rows} - changed
        readied = [row for row in delta.rows if row.before.id in changed]
        flushed.readied[tube.no] = (
            answers[rows_at + 1][0][0]
            if tube.kind.per_utube
            else sum((row.after.state == "r") - (row.before.state == "r") for row in readied)
        )
    for at, into, entries in puts:
        records = _stored(step, into, entries, answers[at][0])
        flushed.readied[into.no] = flushed.readied.get(into.no, 0) + sum(record.state == "r" for record in records)
        if entries is delta.fresh:
            flushed.fresh = records
        else:
            flushed.works.append((into, records))
    if answers[notify_at:] and answers[notify_at]:
        step.db.notifier.sent()
    step.count_changes()
    return flushed


def _lowered(step: PostgresStep, tube: Tube, rows: Sequence[Changed]) -> list[Call]:
    """What makes takes begin to look at these again, in a tube that knows where they begin."""
    if not bounded(tube):
        return []
    head = min((row.before.id for row in rows if row.after.state == "r"), default=None)
    due = min((row.after.at for row in rows if row.after.state != "-" and row.after.at is not None), default=None)
    return [] if head is None and due is None else [step.call(step.Q.lower, tube=tube.no, head=head, due=due)]


def _rows_call(step: PostgresStep, delta: Delta) -> Call:
    tube, on, queued = delta.tube, step.on(delta.tube), delta.tube.kind.per_utube
    base = first_pk(tube)
    rows = sorted(delta.rows, key=lambda row: row.before.id)
    before, after = [row.before for row in rows], [row.after for row in rows]
    classes: dict[tuple[str, str, tuple[str, ...]], int] = {}
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
        "class": [classes.setdefault(_class(row), len(classes)) for row in rows],
        **{field: [getattr(record, field) for record in after] for field in CHANGED},
        "state": ["q" if queued and record.state in "rq" else record.state for record in after],
        "errors": [record.errors if row.error else None for row, record in zip(rows, after, strict=True)],
        "known": [True if record.errors is not None else None for record in before],
        "data": [record and record.payload for record in rewritten],
        "address": addresses,
    }
    for field in ("rank1", "rank2", "pri", "created"):
        columns[field] = [record and getattr(record, field) for record in rewritten] if any(rewritten) else []
    for field in ("status", "result", "error", "code"):
        columns[field] = [ending and getattr(ending, field) for ending in endings] if any(endings) else []
    query = on.flush_ends if any(endings) else on.flush
    if step.passing:
        query = on.flush_ends_passing if any(endings) else on.flush_passing
    return step.call(
        query, tube=tube.no, queued=queued, fair=tube.fair, whole=delta.whole, retention=tube.retention,
        queues=_queues(delta) if queued else [], weights=[weight for events in classes for weight in _weights(*events)],
        **{name: _column(items) for name, items in columns.items()},
    )  # fmt: skip


def _rewritten(row: Changed) -> bool:
    """Whether a task got new content."""
    return row.after.created != row.before.created or row.after.payload is not row.before.payload


def _class(row: Changed) -> tuple[str, str, tuple[str, ...]]:
    """What rows that count alike have in common."""
    return STATE_COUNTER[row.before.state], STATE_COUNTER[row.after.state], row.events


def _column(items: list[Any]) -> list[Any]:
    """An array; one of nothing but NULL need not be sent."""
    return [] if items.count(None) == len(items) else items


def _weights(before: str, after: str, events: tuple[str, ...]) -> list[int]:
    """What a class of changes adds to each counter."""
    undone = events.count(UNDONE)
    return [(name == after) - (name == before) + events.count(name) - undone * (name == "take") for name in WEIGHTS]


def _queues(delta: Delta) -> list[str]:
    """The micro-queues that a change has to do with, in the order in which they are locked."""
    names = {row.before.utube or NO_UTUBE for row in delta.rows}
    for tube, entries in ((delta.tube, delta.fresh), *delta.works):
        if tube.no == delta.tube.no:
            names |= {entry.utube or NO_UTUBE for entry in entries}
    return sorted(names)


def _groups_call(step: PostgresStep, groups: Sequence[GroupRow]) -> Call:
    pairs = [(row.before, row.after) for row in groups]
    return step.call(
        step.Q.change_groups_passing if step.passing else step.Q.change_groups,
        no=[before.no for before, _ in pairs], was=[before.state for before, _ in pairs],
        had=[before.left for before, _ in pairs], exact=[int(row.exact) for row in groups],
        state=[after.state for _, after in pairs], total=[after.total - before.total for before, after in pairs],
        remaining=[after.left - before.left for before, after in pairs],
        end_work=_column([after.end for _, after in pairs]), cancel_work=_column([after.cancel for _, after in pairs]),
        moving=[int(after.moving) for _, after in pairs], until=_column([after.until for _, after in pairs]),
        failed=[after.failed - before.failed for before, after in pairs],
        on_failure=_column([one.on_failure if one.on_failure != was.on_failure else None for was, one in pairs]),
    )  # fmt: skip


def _notify_call(step: PostgresStep, delta: Delta) -> list[Call]:
    """A hint to other processes, where something may have become takeable or have ended. New tasks have their own."""
    tube, rows = delta.tube, delta.rows
    ready = any(row.after.state in "r~" or (tube.kind.per_utube and row.after.state in "!-") for row in rows)
    ended = any(kept_under(row.before.address, row.ending) is not None for row in rows)
    ended = ended or any(row.after.state in OVER for row in delta.groups)
    room = tube.capacity is not None and any(row.after.state == "-" for row in rows)
    return step.notify_call(tube, always=room, ready=ready, ended=ended)
