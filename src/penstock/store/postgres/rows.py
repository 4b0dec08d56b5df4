"""Rows of the functions as values of the contract, and values of the contract as their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from penstock.core import address
from penstock.core.declared import declared_tube
from penstock.core.ending import Ending, Sought
from penstock.core.entry import plain_entry
from penstock.core.group import Group
from penstock.core.ids import shown_mark
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.soundness import stranded
from penstock.core.task import Entry, Rank, Record
from penstock.store.base import GONE, Effects, Event, Finding
from penstock.store.postgres.arrays import numbers, payloads
from penstock.store.postgres.connection import Row

# A penstock_effect: tube, place, events, ready; then the fields of a Record, in its order.
_RECORD = 4
_REASON = _RECORD + Record.__struct_fields__.index("reason")


class Gathered(msgspec.Struct, frozen=True):
    """What a step did: its effects, the tasks that answer its moves with these' places, whether others were told."""

    effects: Effects
    placed: list[tuple[int, Record]]
    told: bool


def record(row: Row) -> Record:
    """The task of an effect."""
    return Record(*cast("Any", row[_RECORD:]))


def gather(rows: Iterable[Row], effects: Effects | None = None) -> Gathered:
    """What the rows of a step say."""
    effects = Effects() if effects is None else effects
    placed: list[tuple[int, Record]] = []
    gains: dict[int, int] = {}
    told = False
    for row in rows:
        tube, place, events, ready = cast("tuple[int, int | None, str, int]", row[:_RECORD])
        if events == "told":
            told = True
            continue
        if events == "acked":
            effects.removed[tube] = effects.removed.get(tube, 0) + ready
            placed += [(place, GONE) for place in _acked_places(ready, cast("str | None", row[_REASON]))]
            continue
        after = record(row)
        if events == "over":
            effects.ended.append(("group", tube, cast(int, after.group_no)))
            continue
        if place is not None:
            placed.append((place, after))
        for name in events.split():
            effects.events.append(Event(tube, name, after))
        if ready:
            gains[tube] = gains.get(tube, 0) + ready
        if after.state == "-":
            effects.removed[tube] = effects.removed.get(tube, 0) + 1
            if after.address is not None:
                effects.ended.append(("task", tube, after.id))
    for tube, gain in gains.items():
        if gain > 0:
            effects.readied[tube] = effects.readied.get(tube, 0) + gain
    return Gathered(effects, placed, told)


def _acked_places(count: int, places: str | None) -> Iterable[int]:
    return range(count) if places is None else map(int, places.split())


def taken(rows: Iterable[Row]) -> tuple[list[Record], list[Row]]:
    """The tasks that a take handed out, in that order, and the rows of all else it did."""
    handed: list[Row] = []
    others: list[Row] = []
    for row in rows:
        (handed if row[2] == "take" else others).append(row)
    handed.sort(key=lambda row: cast("tuple[int, float, float, int]", (row[1], row[6], row[7], row[4])))
    return [record(row) for row in handed], others


def shape(entry: Entry) -> tuple[object, ...]:
    """All of an entry but its data, in the order of penstock_put_alike."""
    one, two = entry.rank1, entry.rank2
    return (
        one.base, one.clock, one.newest, two.base, two.clock, two.newest, entry.pri, entry.utube, entry.ttl,
        entry.ttr, entry.delay, entry.max_attempts, entry.callback,
    )  # fmt: skip


_SHAPE_FIELDS = (
    "base1", "clock1", "newest1", "base2", "clock2", "newest2", "pri", "utube", "ttl", "ttr", "delay", "max_attempts",
    "callback",
)  # fmt: skip


def alike(entries: Sequence[Entry]) -> bool:
    """Whether they differ only in their data."""
    first = entries[0]
    rank1, rank2, same = first.rank1, first.rank2, shape(first)
    return all(
        (entry.rank1 is rank1 and entry.rank2 is rank2 and _options(entry) == _options(first)) or shape(entry) == same
        for entry in entries
    )


def _options(entry: Entry) -> tuple[object, ...]:
    return (entry.pri, entry.utube, entry.ttl, entry.ttr, entry.delay, entry.max_attempts, entry.callback)


_LINK_FIELDS = ("duplicate", "reply_to", "group_name", "group_no")


def linked(entries: Sequence[Entry]) -> bool:
    """Whether any of them is tied to something beside it."""
    return address.linked(entries) or True in [entry.reply_to is not None for entry in entries]


def put_rows(entries: Sequence[Entry]) -> tuple[object, ...]:
    """What the fragment `entries` is given."""
    seen: dict[tuple[object, ...], int] = {}
    found = [(*shape(e), e.duplicate, e.reply_to, e.group, e.group_no) for e in entries]
    which = numbers([seen.setdefault(one, len(seen) + 1) for one in found])
    fields = _SHAPE_FIELDS + _LINK_FIELDS
    shapes = msgspec.json.encode([dict(zip(fields, one, strict=True)) for one in seen]).decode()
    return payloads([entry.payload for entry in entries]), which, [entry.address for entry in entries], shapes


def made(entries: Sequence[Entry], row: Row) -> list[Record]:
    """The records of a put: what the server chose, and what the entries said."""
    moment, ids, _, states, ranks, _, *mark = cast(
        "tuple[int, list[int], object, list[str] | None, list[float], bool, *tuple[int, ...]]", row
    )
    records = []
    for place, (id, entry) in enumerate(zip(ids, entries, strict=True)):
        expires = None if entry.ttl is None else moment + entry.ttl + entry.delay
        state, rank2 = "~" if entry.delay else "r", _value(entry.rank2, id, moment)
        if states is not None:
            state, rank2 = states[place], ranks[place]
        records.append(
            Record(
                id, state, _value(entry.rank1, id, moment), rank2, entry.pri, entry.utube, 0, 0, moment, None, expires,
                moment + entry.delay if entry.delay else expires, entry.ttr, entry.max_attempts, None, None,
                entry.callback, entry.payload, shown_mark((mark[0], mark[1] + place + 1)) if mark else None,
            )
        )  # fmt: skip
    return records


def _value(rank: Rank, id: int, moment: int) -> float:
    return rank.value(id, moment) if rank.clock or rank.newest else rank.base


def plain_acks(moves: Sequence[Move]) -> bool:
    """Whether these are acks of one session, each of another task with an id that a store can have."""
    first = moves[0]
    if any(move.verb != "ack" or move.session != first.session or not 0 < move.id < 1 << 40 for move in moves):
        return False
    return len(moves) == 1 or len({move.id for move in moves}) == len(moves)


def ack_rows(moves: Sequence[Move]) -> tuple[object, ...]:
    """Ids in order, leases, places and results, as penstock_ack is given them."""
    order = sorted(range(len(moves)), key=lambda place: moves[place].id)
    results = [moves[place].result for place in order]
    return (
        numbers(moves[place].id for place in order), numbers(moves[place].lease or 0 for place in order),
        numbers(order), None if results.count(None) == len(results) else results,
    )  # fmt: skip


def named_acks(moves: Sequence[Move]) -> bool:
    """Whether these are acks, each of another message."""
    return all(move.verb == "ack" for move in moves) and len({move.name for move in moves}) == len(moves)


def group(row: Row) -> Group:
    """The group of a stored row."""
    no, _, *rest = cast("Any", row)
    return Group(no, *rest)


def sought(row: Row) -> Sought:
    """What penstock_sought found."""
    _, id, *ending = cast("Any", row)
    return Sought(id, None if ending[0] is None else Ending(*ending))


def lost(row: Row) -> Finding:
    """A task that no step would ever make ready."""
    tube, id, state = cast("tuple[str, int, str]", row)
    return Finding(tube, id, stranded(state), "make it ready")


def finding(row: Row) -> Finding:
    """What penstock_check found; a task of an unleased kind is known by its name."""
    tube, id, name, what, remedy = cast("tuple[str, int | None, str | None, str, str]", row)
    return Finding(tube, id if name is None else name, what, remedy)


def tube_row(kind: Kind, given: dict[str, object]) -> tuple[object, ...]:
    """What penstock_save_tube is given after the name."""
    tube = make_tube(0, "", kind, given)
    declared = msgspec.json.encode(kind, order="deterministic").decode()
    plain = dict(zip(_SHAPE_FIELDS, shape(plain_entry(tube, b"")), strict=True))
    return (
        declared, encode_given(given).decode(), kind.per_utube, tube.fair, tube.utube_limit, kind.order[0] == "id",
        tube.capacity, tube.temporary, tube.retention, msgspec.json.encode(plain).decode(), kind.hand_out, tube.period,
    )  # fmt: skip


def tube(row: Row) -> Tube:
    """The tube of a stored row: number, name, kind, options."""
    return declared_tube(*cast("tuple[int, str, str, str]", row))
