"""Turn one put into an Entry: options validated against the tube, data encoded, ranks as formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import msgspec
from msgspec.structs import astuple

from penstock.core import codec, names
from penstock.core.ending import KEEP_EXPIRY
from penstock.core.kind import CLOCK
from penstock.core.options import EXTRA_CHECKS, PutOptions, Tube, checked_extra, refuse_foreign
from penstock.core.shards import refuse_sharded
from penstock.core.task import NO_UTUBE, UNSTARTED, Entry, Rank, Record
from penstock.core.values import number, positive_ms, pri, span_ms
from penstock.errors import BadValue, PayloadTooLarge

# The rank of a task that has no such time, so it sorts last: above every clock value, still exact in a double.
NEVER = 2**53 - 1
# Options that set one field of the Entry: the field's name and its check. They do not affect order or deadlines, so a
# put with only these skips the parsing of the others: a third of a put of 1,000 with addresses or micro-queues.
_FIELDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "address": ("address", partial(names.label, "address")),
    "reply_to": ("reply_to", lambda value: str(value) if value is KEEP_EXPIRY else names.name("reply_to", value)),
    "group": ("group", partial(names.name, "group")),
    "on_duplicate": ("duplicate", names.plain),
    "utube": ("utube", names.utube),
}
_UNPLACED = _FIELDS.keys() | EXTRA_CHECKS.keys()
#: Options of `_FIELDS` that a kind accepts or refuses regardless of their values.
SINGLE_FIELDS = _FIELDS.keys() - {"on_duplicate"}
_ZERO = Rank()


class _Terms(msgspec.Struct, frozen=True):
    """The options of one put that affect order and deadlines, with the tube's defaults; times in milliseconds."""

    pri: int
    ttl: int | None
    ttr: int | None
    delay: int = 0
    rank: float = 0


def make_entry(tube: Tube, data: object, options: PutOptions) -> Entry:
    """Validate and encode one put. Stores nothing."""
    return entry_of(tube, encode_payload(tube, "data", data), options)


def entry_of(tube: Tube, payload: bytes, options: PutOptions) -> Entry:
    """Like `make_entry`, for a payload that is already encoded."""
    clocked = tube.kind.hand_out == CLOCK
    if not options and not clocked:
        return plain_entry(tube, payload)
    given = {option: value for option, value in options.items() if value is not None}
    refuse_foreign(tube.kind, given)
    if "group" in given:
        refuse_sharded("groups", tube.name, tube.shards)
    placed = clocked or not given.keys() <= _UNPLACED
    entry = _entry(tube, payload, _terms(tube, given), _plain(tube).extra) if placed else plain_entry(tube, payload)
    fields = {}
    for option, value in given.items():
        if (found := _FIELDS.get(option)) is not None:
            fields[found[0]] = found[1](value)
    if not EXTRA_CHECKS.keys().isdisjoint(given):
        fields["extra"] = checked_extra({**tube.given, **given})  # type: ignore[assignment]
    if clocked:
        fields |= _named(tube, given)
    return msgspec.structs.replace(entry, **fields) if fields else entry


def copies(entry: Entry, payloads: Iterable[bytes], options: Mapping[str, Sequence[Any]]) -> Iterator[Entry]:
    """Copies of this entry with other data and other values of these options, all in `SINGLE_FIELDS` and none None.

    Parsing the options of every entry took half of a put of 1,000 with addresses.
    """
    columns: dict[str, Iterable[Any]] = dict(zip(Entry.__struct_fields__, map(repeat, astuple(entry)), strict=True))
    columns["payload"] = payloads
    for option, values in options.items():
        field, check = _FIELDS[option]
        columns[field] = map(check, values)
    return map(Entry, *columns.values())


def _terms(tube: Tube, given: dict[str, object]) -> _Terms:
    return _Terms(
        pri("pri", given["pri"]) if "pri" in given else tube.pri,
        positive_ms("ttl", given["ttl"]) if "ttl" in given else tube.ttl,
        positive_ms("ttr", given["ttr"]) if "ttr" in given else tube.ttr,
        span_ms("delay", given.get("delay", 0)),
        number("rank", given["rank"]) if "rank" in given else 0,
    )


def plain_entry(tube: Tube, payload: bytes) -> Entry:
    """The entry of a put without options."""
    plain = tube.plain or _plain(tube)
    return Entry(payload, plain.rank1, plain.rank2, plain.pri, plain.utube, plain.ttl, plain.ttr, 0, plain.extra)


def _plain(tube: Tube) -> Entry:
    """The entry of a put without options and data, cached in the tube."""
    if tube.plain is None:
        plain = _entry(tube, b"", _Terms(tube.pri, tube.ttl, tube.ttr), checked_extra(tube.given))
        msgspec.structs.force_setattr(tube, "plain", plain)
        return plain
    return tube.plain


def new_record(entry: Entry, id: int, now: int) -> Record:
    """The task as first stored. In a micro-queue kind, the store decides between the states r and q."""
    expires = None if entry.ttl is None else now + entry.ttl + entry.delay
    state = UNSTARTED if entry.unstarted else "~" if entry.delay else "r"
    at = now + entry.delay if entry.delay else expires
    # Positional: with 21 keywords this takes 3.1 µs instead of 0.7, in every put.
    return Record(
        id, state, entry.rank1.value(id, now), entry.rank2.value(id, now), entry.pri, entry.utube, 0, 0, now, None,
        expires, at, entry.ttr, None, None, entry.extra, entry.payload, entry.address, entry.reply_to, entry.group,
        entry.group_no,
    )  # fmt: skip


def are_alike(entries: Sequence[Entry]) -> bool:
    """Whether the entries differ only in data, address and micro-queue."""
    first, copy = entries[0], msgspec.structs.replace
    return all(
        entry == copy(first, payload=entry.payload, address=entry.address, utube=entry.utube) for entry in entries
    )


def new_records(entries: Sequence[Entry], ids: Iterable[int], now: int, *, alike: bool) -> list[Record]:
    """The tasks as first stored. `alike`: see `are_alike`; copying one record then takes half the time."""
    first, copy = entries[0], msgspec.structs.replace
    if not alike or first.rank1.newest or first.rank2.newest:
        return [new_record(entry, id, now) for entry, id in zip(entries, ids, strict=True)]
    one = new_record(first, 0, now)
    return [
        copy(one, id=id, payload=entry.payload, address=entry.address, utube=entry.utube)
        for entry, id in zip(entries, ids, strict=True)
    ]


def record_maker(entry: Entry) -> Callable[[int, int, bytes], Record]:
    """A function that makes the record of an independent task (`stands_alone`) from id, put time and payload."""
    plain, ttl, replace = new_record(entry, 0, 0), entry.ttl, msgspec.structs.replace

    def make(id: int, created: int, payload: bytes) -> Record:
        expires = None if ttl is None else created + ttl
        return replace(plain, id=id, created=created, expires=expires, at=expires, payload=payload)

    return make


def encode_payload(tube: Tube, what: str, value: object) -> bytes:
    """Encode data or a result. Raises PayloadTooLarge above the tube's limit."""
    payload = codec.encode(value)
    if len(payload) > tube.max_payload and codec.size(payload) > tube.max_payload:
        raise PayloadTooLarge(
            f"{what} of {codec.size(payload)} bytes is over the limit of {tube.max_payload} of tube {tube.name}: "
            "store it elsewhere and put a reference, or create the tube with a larger max_payload"
        )
    return payload


def stands_alone(tube: Tube, entry: Entry) -> bool:
    """Whether a task has no address, group or reply, is ready at once, and has ranks without its id and put time."""
    return (
        entry.address is entry.group is entry.reply_to is None
        and not entry.delay and tube.kind.leased and not tube.kind.per_utube and tube.capacity is None
        and not (entry.rank1.clock or entry.rank1.newest or entry.rank2.clock or entry.rank2.newest)
    )  # fmt: skip


def _named(tube: Tube, given: dict[str, object]) -> dict[str, str]:
    """The fields of an element of a round tube. Its id is stored as its address, and a second put of that id changes
    nothing, or only the data."""
    if "id" not in given:
        raise BadValue(f"id is missing: kind {tube.kind.name} needs one at put, a str of your choice")
    duplicate = "refresh" if given.get("on_duplicate") == "replace" else "ignore"
    return {"address": names.label("id", given["id"]), "duplicate": duplicate}


def _entry(tube: Tube, payload: bytes, terms: _Terms, extra: str | None) -> Entry:
    order = tube.kind.order
    rank1 = _RANKS[order[0]](tube, terms)
    # Ids break ties, so an order that starts with the id needs no second rank.
    rank2 = _RANKS[order[1]](tube, terms) if len(order) > 1 and order[0] != "id" else _ZERO
    utube = NO_UTUBE if tube.kind.per_utube else None
    deadline = terms.ttr if terms.ttr is not None else terms.ttl
    return Entry(payload, rank1, rank2, terms.pri, utube, terms.ttl, deadline, terms.delay, extra)


def _pri_rank(tube: Tube, terms: _Terms) -> Rank:
    if tube.aging is None:
        return Rank(terms.pri)
    return Rank(min(terms.pri * tube.aging, NEVER // 2), clock=True)


def _expires_rank(tube: Tube, terms: _Terms) -> Rank:
    return Rank(NEVER) if terms.ttl is None else Rank(terms.ttl + terms.delay, clock=True)


_RANKS: dict[str, Callable[[Tube, _Terms], Rank]] = {
    "id": lambda tube, terms: _ZERO,
    "-id": lambda tube, terms: Rank(newest=True),
    "pri": _pri_rank,
    "expires": _expires_rank,
    "due": lambda tube, terms: Rank(terms.delay, clock=True),
    "created": lambda tube, terms: Rank(clock=True),
    "rank": lambda tube, terms: Rank(terms.rank),
}
