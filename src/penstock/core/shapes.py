"""Flags and collections as callers may give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from penstock.core.names import kind_of, shown
from penstock.errors import BadValue

T = TypeVar("T")


def flag(what: str, value: object) -> bool:
    """True or False; other values may be meant as either."""
    if type(value) is not bool:
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give True or False")
    return value


def several(what: str, value: Iterable[T]) -> Iterable[T]:
    """Any collection or iterator."""
    given: object = value
    if not isinstance(given, Iterable) or isinstance(given, type):
        raise BadValue(f"{what} {shown(value)} is {kind_of(value)}: give a list")
    return value


def items(value: Iterable[T]) -> Iterable[T]:
    """What put_many is given. A text or a mapping is one item more often than many."""
    given: object = value
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
        raise BadValue(f"items {shown(value)} is {kind_of(value)}, which is one item: give a list, such as [item]")
    return several("items", value)
