"""What was decided, written as one transaction in one round trip: rows that changed, new tasks, groups, and acks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.group import OVER
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER
from penstock.core.task import NO_UTUBE, Entry
from penstock.engine.port import Acked, Delta, Flushed, GroupRow, Row
from penstock.store.postgres.puts import bounded, made, put_calls
from penstock.store.postgres.wire import Call
from penstock.store.sql.queries import ID_MASK
from penstock.store.sql.step import first_pk

if TYPE_CHECKING:
    from penstock.store.postgres.step import PostgresStep

# What a class of changes adds to each counter, in the order of the statement.
_WEIGHTS = (
    "ready", "taken", "delayed", "buried", "done", "release", "ttr", "ttl", "bury", "delay", "touch", "ack", "fail",
    "delete", "kick",
)  # fmt: skip


def flush(step: PostgresStep, delta: Delta) -> Flushed:
    """Write a decision. What locks tasks stands first, and groups, which many share, last."""
    tube, works = delta.tube, delta.works
    calls = step.opened(tube, *(other for other, _ in works))
    if delta.whole:
        calls.append(step.call(step.Q.must_live, tubes=sorted({tube.no, *(other.no for other, _ in works)})))
    rows_at = heads_at = tell_at = None
    if delta.rows:
        calls += _lowered(step, tube, delta.rows)
        rows_at = len(calls)
        calls.append(_rows_call(step, delta))
        if tube.kind.per_utube:
            heads_at = len(calls)
            calls.append(step.call(step.on(tube).heads, tube=tube.no, limit=tube.utube_limit, fair=tube.fair))
    puts: list[tuple[int, Tube, list[Entry]]] = []
    for place, (into, entries) in enumerate(((tube, delta.fresh), *works)):
        if entries:
            puts.append((len(calls), into, entries))
            calls += put_calls(step, into, entries, capacity=tube.capacity if place == 0 else None, strict=True)
    if delta.erase_upto is not None:
        base = first_pk(tube)
        calls.append(step.call(step.on(tube).erase, low=base, high=base | delta.erase_upto))
    if delta.groups:
        calls.append(_groups_call(step, delta.groups))
    telling = _telling(step, delta)
    if telling is not None:
        tell_at = len(calls)
        calls.append(telling)
    answers = step.run(calls, twice=step.passing and not delta.whole)
    flushed = Flushed()
    if rows_at is not None:
        clock, pks, *_ = answers[rows_at][0] if answers[rows_at] else (step.now, None)
        step.now = clock
        changed = {pk & ID_MASK for pk in pks or ()}
        step.moved = step.moved or (step.passing and bool(changed))
        flushed.missed = {row.before.id for row in delta.rows} - changed
        flushed.readied[tube.no] = answers[heads_at][0][0] if heads_at is not None else _readied(delta.rows, changed)
    for at, into, entries in puts:
        records = made(step, into, entries, answers[at][0])
        flushed.readied[into.no] = flushed.readied.get(into.no, 0) + sum(record.state == "r" for record in records)
        if entries is delta.fresh:
            flushed.fresh = records
        else:
            flushed.works.append((into, records))
    if tell_at is not None and answers[tell_at]:
        step.db.teller.told()
    step.count_changes()
    return flushed


def _readied(rows: Sequence[Row], changed: set[int]) -> int:
    return sum((row.after.state == "r") - (row.before.state == "r") for row in rows if row.before.id in changed)


def _lowered(step: PostgresStep, tube: Tube, rows: Sequence[Row]) -> list[Call]:
    """What makes takes begin to look at these again, in a tube that knows where they begin."""
    if not bounded(tube):
        return []
    head = min((row.before.id for row in rows if row.after.state == "r"), default=None)
    due = min((row.after.at for row in rows if row.after.state != "-" and row.after.at is not None), default=None)
    return [] if head is None and due is None else [step.call(step.Q.lower, tube=tube.no, head=head, due=due)]


def _rows_call(step: PostgresStep, delta: Delta) -> Call:
    tube = delta.tube
    base, queued = first_pk(tube), tube.kind.per_utube
    rows = sorted(delta.rows, key=_id_of)
    before, after = [row.before for row in rows], [row.after for row in rows]
    classes: dict[tuple[str, str, tuple[str, ...]], int] = {}
    values: dict[str, Any] = {
        "keys": [base | record.id for record in before],
        "was": ["r" if record.state == "q" else record.state for record in before],
        "held": [record.lease for record in before],
        "due": _column([record.at for record in before]),
        "rank": [record.rank1 for record in before],
        "until": _column([row.until for row in rows]),
        "class": [classes.setdefault(_class_of(row), len(classes)) for row in rows],
        "state": ["q" if queued and record.state in "rq" else record.state for record in after],
        "at": _column([record.at for record in after]),
        "expires": _column([record.expires for record in after]),
        "weights": [weight for events in classes for weight in _weights(*events)],
        "tube": tube.no, "queued": queued, "fair": tube.fair, "whole": delta.whole,
        "queues": _queues(delta) if queued else [],
    }  # fmt: skip
    on = step.on(tube)
    if any(row.after.created != row.before.created or row.after.payload is not row.before.payload for row in rows):
        values |= {
            "rank1": [record.rank1 for record in after],
            "rank2": [record.rank2 for record in after],
            "pri": [record.pri for record in after],
            "created": [record.created for record in after],
            "datas": [row.after.payload for row in rows],
        }
        return step.call(on.flush_content, **values)
    values |= {
        "attempts": [record.attempts for record in after],
        "owner": _column([record.owner for record in after]),
        "reason": _column([record.reason for record in after]),
        "progress": _column([record.progress for record in after]),
    }
    endings = [
        row.ending if row.after.state == "-" and row.before.address is not None and tube.kind.leased else None
        for row in rows
    ]
    if endings.count(None) == len(endings):
        return step.call(on.flush_passing if step.passing else on.flush, **values)
    values |= {
        "retention": tube.retention,
        "addresses": [row.before.address if ending else None for row, ending in zip(rows, endings, strict=True)],
        "statuses": [ending and ending.status for ending in endings],
        "results": _column([ending and ending.result for ending in endings]),
        "errors": _column([ending and ending.error for ending in endings]),
        "codes": _column([ending and ending.code for ending in endings]),
    }
    return step.call(on.flush_ends_passing if step.passing else on.flush_ends, **values)


def _class_of(row: Row) -> tuple[str, str, tuple[str, ...]]:
    """What rows that count alike have in common."""
    return STATE_COUNTER[row.before.state], STATE_COUNTER[row.after.state], row.events


def _id_of(row: Row) -> int:
    return row.before.id


def _column(items: list[Any]) -> list[Any]:
    """An array; one of nothing but NULL need not be sent."""
    return [] if items.count(None) == len(items) else items


def _weights(before: str, after: str, events: tuple[str, ...]) -> list[int]:
    return [(name == after) - (name == before) + events.count(name) for name in _WEIGHTS[:5]] + [
        events.count(name) for name in _WEIGHTS[5:]
    ]


def _queues(delta: Delta) -> list[str]:
    """The micro-queues that a change has to do with, in the order in which they are locked."""
    names = {row.before.utube or NO_UTUBE for row in delta.rows}
    for tube, entries in ((delta.tube, delta.fresh), *delta.works):
        if tube.no == delta.tube.no:
            names |= {entry.utube or NO_UTUBE for entry in entries}
    return sorted(names)


def _groups_call(step: PostgresStep, groups: Sequence[GroupRow]) -> Call:
    pairs = [(row.before, row.after) for row in groups]
    query = step.Q.change_groups_passing if step.passing else step.Q.change_groups
    return step.call(
        query, nos=[before.no for before, _ in pairs], was=[before.state for before, _ in pairs],
        had=[before.left for before, _ in pairs], exact=[int(row.exact) for row in groups],
        state=[after.state for _, after in pairs], total=[after.total - before.total for before, after in pairs],
        remaining=[after.left - before.left for before, after in pairs],
        end_work=_column([after.end for _, after in pairs]), cancel_work=_column([after.cancel for _, after in pairs]),
        moving=[int(after.moving) for _, after in pairs], until=_column([after.until for _, after in pairs]),
    )  # fmt: skip


def _telling(step: PostgresStep, delta: Delta) -> Call | None:
    """A hint to other processes, where something may have become takeable or have ended; new tasks tell themselves."""
    name, tube = step.db.teller.name, delta.tube
    if name is None:
        return None
    queued = tube.kind.per_utube
    ready = any(row.after.state in "r~" or (queued and row.after.state in "!-") for row in delta.rows)
    gone = any(row.after.state == "-" for row in delta.rows)
    ended = any(row.ending is not None and row.before.address is not None for row in delta.rows)
    ended = ended or any(row.after.state in OVER for row in delta.groups)
    always = gone and tube.capacity is not None
    if not (ready or ended or always):
        return None
    values = {"process": name, "tube": tube.no, "tubes": [tube.no]}
    return step.call(step.Q.tell, always=always, ready=ready, ended=ended, **values)


def ack(step: PostgresStep, tube: Tube, moves: Sequence[Move]) -> Acked:
    """Ack what needs no rule."""
    on, process = step.on(tube), step.db.teller.name
    values: dict[str, object] = {"tube": tube.no, "process": process, "bounded": tube.capacity is not None}
    if not tube.kind.leased:
        named = step.call(on.ack_named, texts=[move.name for move in moves], **values)
        acked = Acked({row[0] for row in step.run([*step.opened(tube), named])[-1]})
        step.count_changes()
        return acked
    held = sorted((move for move in moves if 0 < move.id <= ID_MASK), key=lambda move: move.id)
    if not held:
        return Acked(set())
    base, queued = first_pk(tube), tube.kind.per_utube
    values |= {
        "pks": [base | move.id for move in held], "leases": [move.lease or 0 for move in held],
        "sessions": [move.session for move in held], "results": _column([move.result for move in held]),
        "retention": tube.retention,
    }  # fmt: skip
    calls = step.opened(tube)
    at = len(calls)
    if queued:
        calls.append(step.call(on.ack_queued, fair=tube.fair, **values))
        calls.append(step.call(on.heads, tube=tube.no, limit=tube.utube_limit, fair=tube.fair))
        if process is not None:
            tells = {"process": process, "tube": tube.no, "tubes": [tube.no]}
            calls.append(step.call(step.Q.tell, always=False, ready=True, ended=False, **tells))
    else:
        calls.append(step.call(on.ack, **values))
    answers = step.run(calls)
    gone, kept, said, *_ = answers[at][0]
    if said or (queued and len(answers) > at + 2 and answers[at + 2]):
        step.db.teller.told()
    step.count_changes()
    keys = {pk & ID_MASK for pk in gone or ()}
    return Acked(keys, answers[at + 1][0][0] if queued else 0, [pk & ID_MASK for pk in kept or ()])
