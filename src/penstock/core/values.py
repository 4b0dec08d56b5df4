"""Validation of values: flags, collections, integers in a range, and seconds that become milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from penstock.core.names import kind_of, shown
from penstock.errors import BadValue

T = TypeVar("T")

# A hundred years: longer than any queue lives, and far below 2**53 when counted in milliseconds.
MAX_SECONDS = 3_155_760_000
MAX_WHOLE = 2**31 - 1
# Seconds as callers may give them.
Seconds = float | timedelta
MAX_PRI = MAX_WHOLE
# Tolerance for sums of floats: a hundred times 0.01 is 1.0000000000000007.
ROUNDING = 1e-9
# Seconds without a heartbeat after which a session lapses. Below a few, every slow query would end a session.
_LAPSE, _SHORTEST_LAPSE, _LONGEST_LAPSE = 15, 3, 86_400


def whole(what: str, value: object, low: int = 1, high: int = MAX_WHOLE) -> int:
    """Validate an int from low to high; bools and floats are refused."""
    if type(value) is not int:
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give an int from {low} to {high}")
    if not low <= value <= high:
        raise BadValue(f"{what} {shown(value)} is out of range: give an int from {low} to {high}")
    return value


def pri(what: str, value: object) -> int:
    """Validate a priority; smaller ones come first."""
    return whole(what, value, 0, MAX_PRI)


def number(what: str, value: object) -> float:
    """Validate a finite int or float that a double holds."""
    if type(value) not in (int, float):
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give a number")
    assert isinstance(value, (int, float))
    if not -(2**53) <= value <= 2**53:  # also refuses NaN
        raise BadValue(f"{what} {shown(value)} is out of range: give a number within ±2**53")
    return value


def share(what: str, value: object) -> float:
    """Validate a number from 0 to 1; a rounding error above 1 counts as 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give a share, from 0 to 1")
    if not 0 <= value <= 1 + ROUNDING:  # also refuses NaN
        raise BadValue(f"{what} {shown(value)} is out of range: give a share, from 0 to 1")
    return min(float(value), 1.0)


def positive_ms(what: str, value: object) -> int:
    """Convert seconds above 0 to whole milliseconds, at least 1."""
    return max(1, round(_seconds(what, value, "above 0", above=True) * 1000))


def span_ms(what: str, value: object) -> int:
    """Convert seconds, 0 or more, to whole milliseconds."""
    # Rounded first: 16.1 s are 16100.000000000002 ms in floating point, not 16101.
    return math.ceil(round(_seconds(what, value, "0 or more") * 1000, 3))


def lapse_ms(variable: str, text: str | None) -> int:
    """Convert the seconds in an environment variable, or the default if it is empty, to milliseconds."""
    try:
        seconds = float(text or _LAPSE)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_LAPSE <= seconds <= _LONGEST_LAPSE:
        wanted = f"give one from {_SHORTEST_LAPSE} to {_LONGEST_LAPSE}"
        raise BadValue(f"{variable} {shown(text)} is not a number of seconds: {wanted}")
    return round(seconds * 1000)


def timeout(value: object) -> float | None:
    """Validate the seconds to wait, 0 or more; None waits forever."""
    return None if value is None else _seconds("timeout", value, "0 or more, or None")


def delay_until(at: object, now: int) -> Seconds:
    """The delay until that time; 0 if it is in the past. `now` is the store's clock in milliseconds."""
    if not isinstance(at, datetime):
        raise BadValue(f"at {shown(at)} is {kind_of(at)}: give a datetime with a time zone")
    if at.utcoffset() is None:
        raise BadValue(f"at {shown(at)} has no time zone: give an aware datetime, such as datetime.now(UTC)")
    delay = max((at.timestamp() * 1000 - now) / 1000, 0)
    if delay > MAX_SECONDS:
        raise BadValue(f"at {shown(at)} is out of range: at most {MAX_SECONDS} seconds (100 years) from now")
    return delay


def plain_seconds(value: object) -> object:
    """Convert a timedelta to seconds; return every other value unchanged."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def _seconds(what: str, value: object, wanted: str, *, above: bool = False) -> float:
    if type(value) not in (int, float):
        if not isinstance(value, timedelta):
            raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give seconds or a timedelta, {wanted}")
        value = value.total_seconds()
    assert isinstance(value, (int, float))
    if not (value > 0 if above else value >= 0):  # also refuses NaN
        raise BadValue(f"{what} {shown(value)} is out of range: give seconds, {wanted}")
    if value > MAX_SECONDS:
        raise BadValue(f"{what} {shown(value)} is out of range: at most {MAX_SECONDS} seconds (100 years)")
    return float(value)


def flag(what: str, value: object) -> bool:
    """Validate a flag: True or False. Other types are refused, because their meaning is not clear."""
    if type(value) is not bool:
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give True or False")
    return value


def several(what: str, value: Iterable[T]) -> Iterable[T]:
    """Validate a collection or iterator."""
    given: object = value
    if not isinstance(given, Iterable) or isinstance(given, type):
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give a list")
    return value


def items(value: Iterable[T]) -> Iterable[T]:
    """Validate the items of put_many. Refuses a str, bytes or mapping, which is probably meant as a single item."""
    given: object = value
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
        raise BadValue(f"items {shown(value)} is {kind_of(value)}, which is one item: give a list, such as [item]")
    return several("items", value)
