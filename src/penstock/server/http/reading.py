"""Queries and bodies as the values that an operation takes; what will not do is told by name and value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from penstock.core.names import shown
from penstock.errors import BadValue

T = TypeVar("T", bound=msgspec.Struct)
# How msgspec ends a message about one field of the whole.
_AT = re.compile(r" - at `\$\.(\w+)`$")


def read_query(text: str, kind: type[T]) -> T:
    """What stands behind the `?`."""
    pairs = dict(parse_qsl(text, keep_blank_values=True))
    return _convert("query", kind, lambda: msgspec.convert(pairs, kind, strict=False), lambda: pairs)


def read_json(text: bytes, kind: type[T]) -> T:
    """A body; none is as an empty object."""
    text = text or b"{}"
    return _convert("body", kind, lambda: msgspec.json.decode(text, type=kind), lambda: _fields(text))


def _convert(what: str, kind: type[T], read: Callable[[], T], given: Callable[[], dict[str, str]]) -> T:
    try:
        return read()
    except BadValue:
        raise
    except RecursionError:
        raise BadValue(f"the {what} is nested too deeply: flatten it") from None
    except msgspec.ValidationError as error:
        raise BadValue(_told(what, str(error), kind, given())) from None
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise BadValue(f"the {what} cannot be read: {error}") from None


def _fields(text: bytes) -> dict[str, str]:
    """The fields of an object, each as it was sent, whatever that means."""
    try:
        sent = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}
    return {name: bytes(raw).decode("utf-8", "replace") for name, raw in sent.items()}


def _told(what: str, words: str, kind: type[msgspec.Struct], given: dict[str, str]) -> str:
    at = _AT.search(words)
    if at and at[1] in given:
        value = shown(given[at[1]])[1:-1]  # without the quotes: a string of JSON has its own
        return f"{at[1]} {value} of the {what} will not do: {words[: at.start()]}"
    known = ", ".join(kind.__struct_fields__) or "nothing"
    return f"the {what} is not what this call takes: {words}; it takes {known}"
