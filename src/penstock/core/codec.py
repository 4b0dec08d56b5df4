"""Encode task data to stored bytes and decode it again, type for type.

JSON values are stored as JSON text. Bytes are stored after a NUL byte, which no JSON text starts with. Decoding never
imports, calls or evaluates anything that was stored.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, TypeVar, cast, runtime_checkable

import msgspec

from penstock.core.names import kind_of, shown
from penstock.errors import BadValue

T = TypeVar("T")

#: First byte of a payload that holds bytes.
RAW = b"\0"
_encode = msgspec.json.Encoder().encode
#: Decodes a payload that is JSON, by msgspec's own function, because takes need the speed. Raises one of UNREADABLE.
decode_json = msgspec.json.Decoder().decode
UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)
_ATOMS = frozenset({str, bool, type(None)})
# Deeper data could overflow a reader's stack, whatever recursion limit the writer had.
MAX_DEPTH = 200
# One digit less than Python reads back by default, for the sign.
_MAX_INT = 10**4299


@runtime_checkable
class _Pydantic(Protocol):
    """The methods that penstock uses of a pydantic model, so that pydantic itself is never imported."""

    def model_dump(self, *, mode: str) -> object: ...


def encode(data: object) -> bytes:
    """The bytes to store for a JSON value, bytes, dataclass, msgspec struct or pydantic model."""
    kind = type(data)
    if kind is bytes:
        return RAW + cast(bytes, data)
    try:
        if kind is not str:
            data = _plain(data)
        return _encode(data)
    except RecursionError:
        raise BadValue("data is nested too deeply: flatten it or put it as bytes") from None
    except UnicodeEncodeError:
        raise BadValue("data has a lone surrogate, which is not text: encode it, or put it as bytes") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue(f"data cannot be stored as JSON ({error}): put it as bytes") from None


def is_raw(payload: bytes) -> bool:
    """Whether the payload holds bytes rather than JSON."""
    return payload[:1] == RAW


def size(payload: bytes) -> int:
    """The size of the caller's data, without the marker byte."""
    return len(payload) - (payload[:1] == RAW)


def decode(payload: bytes) -> object:
    """The data that was put. Raises BadValue if the stored bytes are damaged."""
    if payload[:1] == RAW:
        return payload[1:]
    try:
        return decode_json(payload)
    except UNREADABLE as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> BadValue:
    """The error for stored bytes that are damaged."""
    return BadValue(f"the stored data cannot be decoded: {error}")


def decode_as(payload: bytes, kind: type[T]) -> T:
    """The data that was put, as a dataclass, msgspec struct, pydantic model or any annotated type."""
    if kind is bytes or payload[:1] == RAW:
        value = decode(payload)
        if not isinstance(value, kind):
            raise BadValue(f"data is {kind_of(value)}, not {kind.__name__}: decode it as the type that was put")
        return value
    validate = getattr(kind, "model_validate_json", None)
    try:
        if validate is not None:
            return cast(T, validate(payload))
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        shape = getattr(kind, "__name__", str(kind))
        raise BadValue(f"data does not fit {shape}: {error}") from error
    except TypeError as error:
        raise BadValue(
            f"data cannot be decoded as {shown(kind)} ({error}): give a dataclass or another type"
        ) from error


def _plain(value: object, depth: int = 0) -> object:
    """The value as plain JSON types. Raises BadValue for anything that would not decode to an equal value."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        if not -_MAX_INT < cast(int, value) < _MAX_INT:
            raise BadValue("data has an integer of over 4,299 digits: put it as a str or as bytes")
        return value
    if kind is float:
        if not math.isfinite(cast(float, value)):
            raise BadValue(f"data has {value}, which is not JSON: put None or a str instead")
        return value
    if depth == MAX_DEPTH:
        raise BadValue(f"data is nested deeper than {MAX_DEPTH} levels: flatten it or put it as bytes")
    if kind is dict:
        return _plain_dict(cast("dict[object, object]", value), depth + 1)
    if kind is list:
        items = cast("list[object]", value)
        plain = [_plain(item, depth + 1) for item in items]
        return items if all(a is b for a, b in zip(items, plain, strict=True)) else plain
    return _plain(_dumped(value), depth)


def _plain_dict(value: dict[object, object], depth: int) -> object:
    changed = None
    for key, item in value.items():
        if type(key) is not str:
            raise BadValue(f"data has the key {shown(key)}, {kind_of(key)}: JSON keys are str")
        plain = _plain(item, depth)
        if plain is not item:
            changed = changed or dict(value)
            changed[key] = plain
    return value if changed is None else changed


def _dumped(value: object) -> object:
    if isinstance(value, type):
        pass
    elif dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        try:
            return lists(msgspec.to_builtins(value, str_keys=True))
        except (TypeError, NotImplementedError) as error:
            raise BadValue(f"data {type(value).__name__} cannot be stored: {error}") from error
    elif isinstance(value, _Pydantic):
        return value.model_dump(mode="json")
    raise BadValue(
        f"data is or holds {kind_of(value)}, which would not come back unchanged: "
        "put JSON values (dict, list, str, int, float, bool, None), bytes, a dataclass, "
        "a msgspec struct or a pydantic model"
    )


def lists(value: object) -> object:
    """Replace tuples by lists in a dumped pydantic model; `decode(Type)` makes them tuples again."""
    if isinstance(value, (list, tuple)):
        return [lists(item) for item in value]
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    return value
