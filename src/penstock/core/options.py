"""The options of tubes and puts: validated once for every store, and converted to milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import NoReturn, TypedDict, cast
from urllib.parse import urlsplit

import msgspec

from penstock.core import names
from penstock.core.backoff import Backoff
from penstock.core.kind import CLOCK, Kind, kinds_with
from penstock.core.shards import check_shards, refuse_with_shards
from penstock.core.task import Entry, Extra, Record
from penstock.core.values import Seconds, delay_until, flag, plain_seconds, positive_ms, pri, span_ms, whole
from penstock.errors import BadValue, StoreCorrupt, UnsupportedOption

DEFAULT_MAX_PAYLOAD = 1024 * 1024
DEFAULT_RETENTION = 7 * 24 * 3600


class TubeOptions(TypedDict, total=False):
    """The options of a tube, all optional."""

    ttl: Seconds | None
    ttr: Seconds | None
    pri: int | None
    callback: str | None
    capacity: int | None
    temporary: bool | None
    max_attempts: int | None
    backoff: Backoff | None
    period: Seconds | None
    utube_limit: int | None
    fair: bool | None
    aging: Seconds | None
    retention: Seconds | None
    max_payload: int | None
    shards: int | None


class AlterOptions(TypedDict, total=False):
    """The options that `tube.alter` changes; None resets one to its default."""

    ttl: Seconds | None
    ttr: Seconds | None
    pri: int | None
    callback: str | None
    capacity: int | None
    max_attempts: int | None
    backoff: Backoff | None
    period: Seconds | None
    retention: Seconds | None
    max_payload: int | None
    utube_limit: int | None


ALTERABLE = tuple(AlterOptions.__annotations__)


class PutOptions(TypedDict, total=False):
    """The options of one put. None means not given."""

    pri: int | None
    ttl: Seconds | None
    ttr: Seconds | None
    delay: Seconds | None
    utube: str | int | None
    id: str | None
    rank: float | None
    address: str | None
    on_duplicate: str | None
    group: str | None
    callback: str | None
    reply_to: str | None
    max_attempts: int | None


class TimedOptions(PutOptions, total=False):
    """PutOptions with a time instead of a delay; `with_delay` converts it."""

    at: datetime | None


class Tube(msgspec.Struct, frozen=True):
    """A stored tube: its number, kind and options, in milliseconds. `given` has the options in the caller's units."""

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
    #: The entry of a put without options; filled by the first put.
    plain: Entry | None = None
    #: How long outcomes are kept.
    retention: int = DEFAULT_RETENTION * 1000
    #: Kind round: the minimum between two hand-outs of an element.
    period: int = 0
    #: Number of shards, which may be on different servers.
    shards: int = 1

    #: Its number for callers, which differs from the stored one in a shard.
    public_no = property(attrgetter("no"))

    def public_id(self, id: int) -> int:
        """The public id of a task, which differs from the stored one in a shard."""
        return id

    def shown(self, record: Record) -> Record:
        """A copy of the record with its public id."""
        return record


def callback_url(what: str, value: object) -> str:
    """Validate an http(s) URL without user info. The worker's allow-list decides whether it may be called."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        good = False
    if not good or len(text) > 2000 or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        visible = f"***@{text.rpartition('@')[2]}" if "@" in text else value  # the rest may be a password
        raise BadValue(f"{what} {names.shown(visible)} is not a callback: give an http(s) URL without user info")
    return names.plain(text)


def _backoff(what: str, value: object) -> Backoff:
    if not isinstance(value, Backoff):
        raise BadValue(f"{what} {names.shown(value)} is {names.kind_of(value)}: give a penstock.Backoff")
    return value


def _period(what: str, value: object) -> int:
    """The period in ms, rounded up, so that nothing is handed out too early."""
    positive_ms(what, value)
    return max(1, span_ms(what, value))


# option -> its check, which returns the value in the unit that stores use
_CHECKS: dict[str, Callable[[str, object], object]] = {
    "ttl": positive_ms,
    "ttr": positive_ms,
    "pri": pri,
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
# put option kept in Extra -> its check; a tube option of the same name is its default
EXTRA_CHECKS: dict[str, Callable[[str, object], object]] = {"max_attempts": whole, "callback": callback_url}
# tube option -> the option that the kind must accept for it
_NEEDS = {
    "ttl": "ttl", "ttr": "ttr", "pri": "pri", "backoff": "delay", "aging": "pri",
    "utube_limit": "per_utube", "fair": "per_utube", "period": "period", "callback": "callback",
    "max_attempts": "max_attempts", "retention": "retention", "shards": "shards",
}  # fmt: skip
# Values that mean "not given", so that broker.tube("x", fair=False) matches a tube without the option.
DEFAULTS: dict[str, object] = {
    "temporary": False, "fair": False, "utube_limit": 1, "pri": 0, "retention": DEFAULT_RETENTION, "shards": 1,
    "max_payload": DEFAULT_MAX_PAYLOAD,
}  # fmt: skip


def check_tube_options(kind: Kind, options: Mapping[str, object]) -> dict[str, object]:
    """The options that differ from their defaults, validated against the kind, in the caller's units."""
    given: dict[str, object] = {}
    for option, value in options.items():
        if option not in _CHECKS:
            raise BadValue(f"tube option {names.shown(option)} is unknown: use {', '.join(_CHECKS)}")
        if value is None:
            continue
        need = _NEEDS.get(option)
        if need is not None and not kind.has(need):
            raise UnsupportedOption(f"kind {kind.name} has no option {option}: use one of {kinds_with(need)}")
        checked = _CHECKS[option](option, value)
        if DEFAULTS.get(option) != plain_seconds(value):
            given[option] = checked if isinstance(checked, str) else plain_seconds(value)
    if given.get("fair") and ("-id" in kind.order or (len(kind.order) == 2 and kind.order[1] != "id")):
        raise UnsupportedOption(f"kind {kind.name} orders by two keys, so fair turns have no place: leave fair out")
    if given.get("aging") and kind.order[0] != "pri":
        raise UnsupportedOption(f"kind {kind.name} does not order by pri first: leave aging out")
    refuse_with_shards(given)
    return given


def check_new_tube(kind: Kind, options: Mapping[str, object]) -> dict[str, object]:
    """Validate the options of a new tube. Raises BadValue if a required option is missing."""
    given = check_tube_options(kind, options)
    if kind.hand_out == CLOCK and "period" not in given:
        raise BadValue(f"kind {kind.name} needs a period: give the seconds between two hand-outs of an element")
    return given


def check_changes(tube: Tube, options: Mapping[str, object]) -> dict[str, object]:
    """Validate changes to the options of a tube; None resets an option to its default."""
    for option in options:
        if option in ("kind", "order") or (option in _CHECKS and option not in ALTERABLE):
            known = ", ".join(ALTERABLE)
            raise UnsupportedOption(f"{option} of tube {tube.name} cannot be changed: alter changes {known}")
    given = check_new_tube(tube.kind, {**tube.given, **options})
    return {option: given.get(option) for option in options}


def changed_options(given: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """The options of a tube after these changes."""
    return {option: value for option, value in {**given, **changes}.items() if value is not None}


def make_tube(no: int, name: str, kind: Kind, given: dict[str, object]) -> Tube:
    """A Tube, from validated options."""
    known = {
        option: _CHECKS[option](option, value) for option, value in given.items() if option in Tube.__struct_fields__
    }
    return Tube(no, name, kind, given, **known)  # type: ignore[arg-type]


def checked_extra(given: Mapping[str, object]) -> str | None:
    """The given options that belong to Extra, packed as stored."""
    checks = EXTRA_CHECKS.items()
    kept = {option: check(option, value) for option, check in checks if (value := given.get(option)) is not None}
    return Extra(**kept).packed() if kept else None  # type: ignore[arg-type]


_PUT_OPTIONS = PutOptions.__annotations__.keys()


def refuse_foreign(kind: Kind, given: Mapping[str, object]) -> None:
    """Raise BadValue for unknown put options, UnsupportedOption for those that the kind does not accept."""
    for option, value in given.items():
        if option not in _PUT_OPTIONS:
            raise BadValue(f"put option {names.shown(option)} is unknown: use {', '.join(_PUT_OPTIONS)}")
        if option == "on_duplicate":
            _check_on_duplicate(value)
        if kind.has(option):
            continue
        if option == "delay" and type(value) in (int, float) and value == 0:
            continue  # the default, spelled out
        if option == "on_duplicate" and value == "error":
            continue
        refuse_option(kind, option)


def _check_on_duplicate(value: object) -> None:
    if value not in ("error", "ignore", "replace"):
        raise BadValue(f"on_duplicate {names.shown(value)} is unknown: give error, ignore or replace")


def with_delay(kind: Kind, given: TimedOptions, now: int) -> PutOptions:
    """Convert `at` in put options to a delay. `now` is the store's clock in milliseconds."""
    options = dict(given)
    at = options.pop("at", None)
    if at is not None:
        delay = options.get("delay")
        if delay is not None and not (type(delay) in (int, float) and delay == 0):
            raise BadValue(f"at and delay {names.shown(delay)} are given: give one of them")
        if not kind.has("delay"):
            raise UnsupportedOption(f"kind {kind.name} has no option at: use one of {kinds_with('delay')}")
        options["delay"] = delay_until(at, now)
    return cast(PutOptions, options)


def refuse_option(kind: Kind, option: str) -> NoReturn:
    """Raise UnsupportedOption, naming the kinds that have the option."""
    raise UnsupportedOption(f"kind {kind.name} has no option {option}: use one of {kinds_with(option)}")


def encode_given(given: Mapping[str, object]) -> bytes:
    """Tube options as JSON, for the store."""
    return msgspec.json.encode(given)


def decode_given(stored: bytes | str) -> dict[str, object]:
    """Tube options, decoded from the stored JSON, in the caller's units."""
    given = cast("dict[str, object]", msgspec.json.decode(stored))
    if "backoff" in given:
        given["backoff"] = msgspec.convert(given["backoff"], Backoff)
    return given


def stored_tube(no: int, name: str, kind: str, given: str) -> Tube:
    """The tube of a stored row. Raises StoreCorrupt if it cannot be read."""
    try:
        return make_tube(no, name, msgspec.json.decode(kind, type=Kind), decode_given(given))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"the declaration of tube {name} cannot be read ({error}): restore a backup") from error
