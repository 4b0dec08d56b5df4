"""The options of tubes and puts: checked once, alike for every store, and turned into milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypedDict, cast
from urllib.parse import urlsplit

import msgspec

from penstock.core import codec, names
from penstock.core.backoff import Backoff
from penstock.core.kind import CLOCK, Kind, kinds_with
from penstock.core.numbers import number, positive_ms, span_ms, whole
from penstock.core.shapes import flag
from penstock.core.shards import check_shards, refuse_group, refuse_with_shards
from penstock.core.task import NO_UTUBE, Entry, Rank
from penstock.errors import BadValue, PayloadTooLarge, UnsupportedOption

DEFAULT_MAX_PAYLOAD = 1024 * 1024
DEFAULT_RETENTION = 7 * 24 * 3600
# Ranks last where a task has no such moment: above every clock, still exact in a double.
NEVER = 2**53 - 1
MAX_PRI = 2**31 - 1


class TubeOptions(TypedDict, total=False):
    """The options of a tube, all optional; seconds are floats."""

    ttl: float | None
    ttr: float | None
    pri: int | None
    callback: str | None
    capacity: int | None
    temporary: bool | None
    max_attempts: int | None
    backoff: Backoff | None
    period: float | None
    utube_limit: int | None
    fair: bool | None
    aging: float | None
    retention: float | None
    max_payload: int | None
    shards: int | None


class PutOptions(TypedDict, total=False):
    """What one put may say; None and absent mean the same: not given."""

    pri: int | None
    ttl: float | None
    ttr: float | None
    delay: float | None
    utube: str | int | None
    id: str | None
    rank: float | None
    address: str | None
    on_duplicate: str | None
    group: str | None
    callback: str | None
    reply_to: str | None
    max_attempts: int | None


class Tube(msgspec.Struct, frozen=True):
    """A tube as stores know it: its number, kind and options, in milliseconds."""

    no: int
    name: str
    kind: Kind
    given: dict[str, object]
    ttl: int | None = None
    ttr: int | None = None
    pri: int = 0
    callback: str | None = None
    capacity: int | None = None
    temporary: bool = False
    max_attempts: int | None = None
    backoff: Backoff | None = None
    utube_limit: int = 1
    fair: bool = False
    aging: int | None = None
    max_payload: int = DEFAULT_MAX_PAYLOAD
    #: What a put without options makes of its payload; filled at the first one.
    plain: Entry | None = None
    #: How long outcomes are kept.
    retention: int = DEFAULT_RETENTION * 1000
    #: Kind round: so long between two hand-outs of an element.
    period: int = 0
    #: So many parts of the tube may stand on servers of their own.
    shards: int = 1


def callback_url(what: str, value: object) -> str:
    """An http(s) URL without user info; whether it may be called is the worker's allow-list to say."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        good = False
    if not good or len(text) > 2000 or not text.isascii() or not text.isprintable() or " " in text:
        raise BadValue(f"{what} {names.shown(value)} is not a callback: give an http or https URL")
    return text


def _backoff(what: str, value: object) -> Backoff:
    if not isinstance(value, Backoff):
        raise BadValue(f"{what} {names.shown(value)} is {names.kind_of(value)}: give a penstock.Backoff")
    return value


def _period(what: str, value: object) -> int:
    """Rounded up, so that nothing is handed out too early."""
    positive_ms(what, value)
    return max(1, span_ms(what, value))


def _pri(what: str, value: object) -> int:
    return whole(what, value, 0, MAX_PRI)


# option -> how it is checked; the checked form is what a store computes with
_CHECKS: dict[str, Callable[[str, object], object]] = {
    "ttl": positive_ms,
    "ttr": positive_ms,
    "pri": _pri,
    "callback": callback_url,
    "capacity": whole,
    "temporary": flag,
    "max_attempts": whole,
    "backoff": _backoff,
    "period": _period,
    "utube_limit": whole,
    "fair": flag,
    "aging": positive_ms,
    "retention": positive_ms,
    "max_payload": whole,
    "shards": check_shards,
}
# tube option -> what the kind must accept for it to mean something
_NEEDS = {
    "ttl": "ttl", "ttr": "ttr", "pri": "pri", "backoff": "delay", "aging": "pri",
    "utube_limit": "per_utube", "fair": "per_utube", "period": "period", "callback": "callback",
    "max_attempts": "max_attempts", "retention": "retention", "shards": "shards",
}  # fmt: skip
# Given but equal to leaving them out, so that broker.tube("x", fair=False) meets a tube without it.
_SAME_AS_ABSENT: dict[str, object] = {
    "temporary": False, "fair": False, "utube_limit": 1, "pri": 0, "retention": DEFAULT_RETENTION, "shards": 1,
}  # fmt: skip


def check_tube_options(kind: Kind, options: Mapping[str, object]) -> dict[str, object]:
    """The options that say something, each checked against the kind, in the caller's units."""
    given: dict[str, object] = {}
    for option, value in options.items():
        if option not in _CHECKS:
            raise BadValue(f"tube option {names.shown(option)} is unknown: known are {', '.join(_CHECKS)}")
        if value is None:
            continue
        need = _NEEDS.get(option)
        if need is not None and not kind.has(need):
            raise UnsupportedOption(f"kind {kind.name} has no option {option}: these have it: {kinds_with(need)}")
        _CHECKS[option](option, value)
        if _SAME_AS_ABSENT.get(option) != value:
            given[option] = value
    if given.get("fair") and ("-id" in kind.order or (len(kind.order) == 2 and kind.order[1] != "id")):
        raise UnsupportedOption(f"kind {kind.name} leaves no place for fair turns in its order: drop fair")
    if given.get("aging") and kind.order[0] != "pri":
        raise UnsupportedOption(f"kind {kind.name} is not led by pri, so aging has nothing to age: drop aging")
    refuse_with_shards(given)
    return given


def check_new_tube(kind: Kind, options: Mapping[str, object]) -> dict[str, object]:
    """As check_tube_options, of a tube that is to be created; BadValue where an option is missing."""
    given = check_tube_options(kind, options)
    if kind.hand_out == CLOCK and "period" not in given:
        raise BadValue(f"kind {kind.name} needs a period: give the seconds between two hand-outs of an element")
    return given


def make_tube(no: int, name: str, kind: Kind, given: dict[str, object]) -> Tube:
    """The tube that a store keeps, from options that were checked."""
    known = {
        option: _CHECKS[option](option, value) for option, value in given.items() if option in Tube.__struct_fields__
    }
    return Tube(no, name, kind, given, **known)  # type: ignore[arg-type]


def make_entry(tube: Tube, data: object, options: PutOptions) -> Entry:
    """Everything about one put checked and encoded; nothing is stored when this raises."""
    payload = encode_payload(tube, "data", data)
    clocked = tube.kind.hand_out == CLOCK
    if not options and not clocked:
        return plain_entry(tube, payload)
    given = {option: value for option, value in options.items() if value is not None}
    _refuse_foreign(tube, given)
    if "group" in given:
        refuse_group(tube.name, tube.shards)
    pri = _pri("pri", given["pri"]) if "pri" in given else tube.pri
    ttl = positive_ms("ttl", given["ttl"]) if "ttl" in given else tube.ttl
    ttr = positive_ms("ttr", given["ttr"]) if "ttr" in given else tube.ttr
    delay = span_ms("delay", given.get("delay", 0))
    utube = names.utube(given["utube"]) if "utube" in given else None
    limit = whole("max_attempts", given["max_attempts"]) if "max_attempts" in given else tube.max_attempts
    callback = callback_url("callback", given["callback"]) if "callback" in given else tube.callback
    rank = number("rank", given["rank"]) if "rank" in given else 0
    entry = _entry(tube, payload, pri, utube, ttl, ttr, delay, rank, limit, callback)
    if clocked:
        return _named(tube, entry, given)
    return entry if LINKS.isdisjoint(given) else _linked(entry, given)


def encode_payload(tube: Tube, what: str, value: object) -> bytes:
    """Data or a result as it is stored; PayloadTooLarge over the tube's limit."""
    payload = codec.encode(value)
    if len(payload) > tube.max_payload and codec.size(payload) > tube.max_payload:
        raise PayloadTooLarge(
            f"{what} of {codec.size(payload)} bytes is over the limit of {tube.max_payload} of tube {tube.name}: "
            "store it elsewhere and put a reference, or create the tube with a larger max_payload"
        )
    return payload


def plain_entry(tube: Tube, payload: bytes) -> Entry:
    """A put without options."""
    plain = tube.plain
    if plain is None:
        plain = _entry(tube, b"", tube.pri, None, tube.ttl, tube.ttr, 0, None, tube.max_attempts, tube.callback)
        msgspec.structs.force_setattr(tube, "plain", plain)
    return Entry(
        payload, plain.rank1, plain.rank2, plain.pri, plain.utube, plain.ttl, plain.ttr, 0, plain.max_attempts,
        plain.callback,
    )  # fmt: skip


def stands_alone(tube: Tube, entry: Entry) -> bool:
    """Whether a task has no links, is ready at once, and its place known before its id and its time."""
    return (
        entry.address is entry.group is entry.reply_to is None
        and not entry.delay and tube.kind.leased and not tube.kind.per_utube and tube.capacity is None
        and not (entry.rank1.clock or entry.rank1.newest or entry.rank2.clock or entry.rank2.newest)
    )  # fmt: skip


# What ties a task to something beside it; every leased kind has these.
LINKS = frozenset({"address", "group", "reply_to"})


def _named(tube: Tube, entry: Entry, given: dict[str, object]) -> Entry:
    """An element, whose id stands where others have an address; a second put changes at most its data."""
    if "id" not in given:
        raise BadValue(f"id is missing: kind {tube.kind.name} needs one at put, a text of your own")
    duplicate = "refresh" if given.get("on_duplicate") == "replace" else "ignore"
    return msgspec.structs.replace(entry, address=names.label("id", given["id"]), duplicate=duplicate)


def _linked(entry: Entry, given: dict[str, object]) -> Entry:
    return msgspec.structs.replace(
        entry,
        address=names.label("address", given["address"]) if "address" in given else None,
        duplicate=given.get("on_duplicate", "error"),
        reply_to=names.name("reply_to", given["reply_to"]) if "reply_to" in given else None,
        group=names.name("group", given["group"]) if "group" in given else None,
    )


_PUT_OPTIONS = PutOptions.__annotations__.keys()


def _refuse_foreign(tube: Tube, given: dict[str, object]) -> None:
    for option, value in given.items():
        if option not in _PUT_OPTIONS:
            raise BadValue(f"put option {names.shown(option)} is unknown: known are {', '.join(_PUT_OPTIONS)}")
        if option == "on_duplicate":
            _check_on_duplicate(value)
        if tube.kind.has(option):
            continue
        if option == "delay" and type(value) in (int, float) and value == 0:
            continue  # the default, spelled out
        if option == "on_duplicate" and value == "error":
            continue
        refuse_option(tube.kind, option)


def refuse_option(kind: Kind, option: str) -> NoReturn:
    """Raise UnsupportedOption, naming the kinds that have the option."""
    raise UnsupportedOption(f"kind {kind.name} has no option {option}: these have it: {kinds_with(option)}")


def _check_on_duplicate(value: object) -> None:
    if value not in ("error", "ignore", "replace"):
        raise BadValue(f"on_duplicate {names.shown(value)} is unknown: give error, ignore or replace")


def _entry(
    tube: Tube, payload: bytes, pri: int, utube: str | None, ttl: int | None, ttr: int | None, delay: int,
    rank: float | None, max_attempts: int | None, callback: str | None,
) -> Entry:  # fmt: skip
    order = tube.kind.order
    values = _Values(pri, ttl, delay, rank or 0, tube.aging)
    rank1 = _RANKS[order[0]](values)
    rank2 = _RANKS[order[1]](values) if len(order) > 1 else _ZERO
    if tube.kind.per_utube and utube is None:
        utube = NO_UTUBE
    deadline = ttr if ttr is not None else ttl
    return Entry(payload, rank1, rank2, pri, utube, ttl, deadline, delay, max_attempts, callback)


class _Values(msgspec.Struct, frozen=True):
    pri: int
    ttl: int | None
    delay: int
    rank: float
    aging: int | None


_ZERO = Rank()


def _pri_rank(values: _Values) -> Rank:
    if values.aging is None:
        return Rank(values.pri)
    return Rank(min(values.pri * values.aging, NEVER // 2), clock=True)


def _expires_rank(values: _Values) -> Rank:
    return Rank(NEVER) if values.ttl is None else Rank(values.ttl + values.delay, clock=True)


_RANKS: dict[str, Callable[[_Values], Rank]] = {
    "id": lambda values: _ZERO,
    "-id": lambda values: Rank(newest=True),
    "pri": _pri_rank,
    "expires": _expires_rank,
    "due": lambda values: Rank(values.delay, clock=True),
    "created": lambda values: Rank(clock=True),
    "rank": lambda values: Rank(values.rank),
}


def encode_given(given: Mapping[str, object]) -> bytes:
    """Tube options as JSON, for the store."""
    return msgspec.json.encode(given)


def decode_given(stored: bytes | str) -> dict[str, object]:
    """Tube options as they were given."""
    given = cast("dict[str, object]", msgspec.json.decode(stored))
    if "backoff" in given:
        given["backoff"] = msgspec.convert(given["backoff"], Backoff)
    return given
