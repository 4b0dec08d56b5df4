"""New tasks: one statement for many, which says what they have in common once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.ending import SUPERSEDED_MS
from penstock.core.entry import new_record, stands_alone
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.refusals import tube_full
from penstock.core.task import Entry, Record
from penstock.engine.port import Conflict
from penstock.store.postgres.wire import Call, Packed, Row

if TYPE_CHECKING:
    from penstock.store.postgres.database import PostgresDatabase
    from penstock.store.postgres.step import PostgresStep


def bounded(tube: Tube) -> bool:
    """Whether all tasks of a tube rank from 0 on, in the order of their ids, so that takes know where to begin."""
    kind = tube.kind
    return kind.leased and not kind.per_utube and kind.order in (("id",), ("pri", "id")) and tube.aging is None


def insert(step: PostgresStep, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
    """Store tasks in order; TubeFull where there is no room."""
    if not entries:
        return []
    opening = step.opened(tube)
    try:
        found = step.run([*opening, *put_calls(step, tube, entries, capacity=tube.capacity)])[len(opening)]
    except Conflict:
        stored = 0 if tube.capacity is None else step.tally(tube).counts.stored
        if tube.capacity is not None and stored + len(entries) > tube.capacity:
            raise tube_full(tube, stored, len(entries)) from None
        raise
    if not found:
        raise step.no_such_tube(tube)
    if found[0][5] is None:
        raise tube_full(tube, found[0][1], len(entries))
    step.count_changes()
    return made(step, tube, entries, found[0])


def put_calls(
    step: PostgresStep, tube: Tube, entries: Sequence[Entry], *, capacity: int | None, strict: bool = False
) -> list[Call]:
    """The statement that stores these, and what must follow it. With `capacity`, it refuses what it sees no room for;
    if `strict`, as a conflict."""
    on, values = step.on(tube), _values(entries)
    values |= {"tube": tube.no, "process": step.db.teller.name, "capacity": capacity}
    values |= {
        "strict": strict and capacity is not None,
        "named": tube.kind.hand_out == CLOCK,
        "limit": tube.utube_limit,
        "fair": tube.fair,
    }
    if tube.kind.per_utube:
        calls = [step.call(on.insert_queued, **values)]
        if tube.kind.order[0] != "id":  # else an arrival overtakes nobody
            calls.append(step.call(on.heads, tube=tube.no, limit=tube.utube_limit, fair=tube.fair))
    else:
        calls = [step.call(on.insert_marked if tube.kind.hand_out == DELIVER else on.insert, **values)]
    addresses = [entry.address for entry in entries if entry.address is not None]
    if addresses and tube.kind.leased:
        calls.append(step.call(step.Q.supersede, tube=tube.no, texts=addresses, later=SUPERSEDED_MS))
    if capacity is not None:  # one caller after the other looks whether the tube holds no more than it may
        calls.append(step.call(step.Q.lock_capacity, tube=tube.no))
        calls.append(step.call(step.Q.admit, tube=tube.no, capacity=capacity))
    return calls


def made(step: PostgresStep, tube: Tube, entries: Sequence[Entry], row: Row) -> list[Record]:
    """The tasks as they were stored."""
    clock, _, told, _, _, ids, ms, seq, states, ranks = row
    step.now = clock
    if told:
        step.db.teller.told()
    records = [new_record(entry, id, clock) for entry, id in zip(entries, ids, strict=True)]
    if states is not None:
        return [
            replace(record, state=state, rank2=rank2)
            for record, state, rank2 in zip(records, states, ranks, strict=True)
        ]
    if ms is not None:
        return [replace(record, address=shown_mark((ms, seq + place))) for place, record in enumerate(records, 1)]
    if tube.kind.hand_out == CLOCK:
        return [replace(record, address=record.address or f"reply-{record.id}") for record in records]
    return records


# The fields that entries may have in common, and what the statement calls them.
_NAMES = ("pri", "utube", "ttl", "ttr", "delay", "most", "callback", "reply_to", "group_name", "group_no", "unstarted")
_shape = attrgetter(
    "rank1", "rank2", "pri", "utube", "ttl", "ttr", "delay", "max_attempts", "callback", "reply_to", "group",
    "group_no", "unstarted",
)  # fmt: skip


def _values(entries: Sequence[Entry]) -> dict[str, Any]:
    """Each field once, where all entries have the same, else as a list."""
    values: dict[str, Any] = {"datas": [entry.payload for entry in entries]}
    addresses = [entry.address for entry in entries]
    values["addresses"] = [] if addresses.count(None) == len(addresses) else addresses
    shapes = [_shape(entry) for entry in entries]
    alike = shapes.count(shapes[0]) == len(shapes)
    columns = [(field,) for field in shapes[0]] if alike else list(zip(*shapes, strict=True))
    for number, ranks in zip("12", columns[:2], strict=True):
        _spread(values, f"base{number}", [rank.base for rank in ranks])
        _spread(values, f"clock{number}", [int(rank.clock) for rank in ranks])
        _spread(values, f"newest{number}", [int(rank.newest) for rank in ranks])
    for name, column in zip(_NAMES, columns[2:], strict=True):
        _spread(values, name, list(column))
    return values


def _spread(values: dict[str, Any], name: str, items: list[Any]) -> None:
    alike = items.count(items[0]) == len(items)
    values[name], values[f"{name}s"] = (items[0], []) if alike else (None, items)


def plain_put(database: PostgresDatabase, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
    """Stores a payload each time it is called; None where its place depends on more, or nothing can be prepared."""
    if not stands_alone(tube, entry) or tube.temporary or not database.connections.prepares:
        return None
    connections, teller, clock = database.connections, database.teller, database.clock
    on, rank1, rank2 = database.queries.durable, entry.rank1.base, entry.rank2.base
    ttl, ttr, pri, most, callback = entry.ttl, entry.ttr, entry.pri, entry.max_attempts, entry.callback
    query = on.put_plain if ttl is None else on.put_mortal
    opening: Call = database.queries.all.open_one, Packed(database.queries.all.open_one, {"tube": tube.no})
    shape = {
        "tube": tube.no, "rank1": rank1, "rank2": rank2, "ttl": ttl, "ttr": ttr, "pri": pri, "most": most,
        "callback": callback, "data": None, "process": None, "now": None,
    }  # fmt: skip
    packed = Packed(query, shape)

    def put(payload: bytes) -> Record | None:
        values = packed.but(data=payload, process=teller.name, now=None if clock is None else clock())
        rows = connections.run([opening, (query, values)])[1]
        if not rows:
            return None
        id, created, told, *_ = rows[0]
        if told is not None:
            teller.told()
        database.fold_sometimes()
        expires = None if ttl is None else created + ttl
        return Record(
            id, "r", rank1, rank2, pri, None, 0, 0, created, None, expires, expires, ttr, most, None, None, callback,
            payload,
        )  # fmt: skip

    return put
