"""Parses the arguments of commands. Only their syntax is checked here; `core` validates values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec

from penstock.broker.tube import Tube
from penstock.core.backoff import Backoff
from penstock.core.names import shown
from penstock.core.options import PutOptions
from penstock.errors import BadValue

Args = Sequence[bytes]
Reader = Callable[[str, bytes], Any]

_WHOLE = re.compile(rb"-?[0-9]{1,19}")
_NUMBER = re.compile(rb"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,3})?")
_FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False}


def _as_text(raw: bytes) -> str:
    """The bytes as text for messages, without the b'' of Python."""
    return shown(raw).removeprefix("b")


def text(what: str, raw: bytes) -> str:
    """A text in UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadValue(f"{what} {shown(raw)} is not UTF-8: encode it as UTF-8") from None


def whole(what: str, raw: bytes) -> int:
    """A whole number in decimal digits."""
    if not _WHOLE.fullmatch(raw):
        raise BadValue(f"{what} {_as_text(raw)} is not a whole number: give decimal digits")
    return int(raw)


def number(what: str, raw: bytes) -> float:
    """A number in decimal digits, such as 1.5; whole ones stay whole."""
    if _WHOLE.fullmatch(raw):
        return int(raw)
    if not _NUMBER.fullmatch(raw):
        raise BadValue(f"{what} {_as_text(raw)} is not a number: give decimal digits, such as 1.5")
    return float(raw)


def data(what: str, raw: bytes) -> bytes:
    """Data: the bytes unchanged."""
    return raw


def flag(what: str, raw: bytes) -> bool:
    """A boolean: true or false."""
    if raw.lower() not in _FLAGS:
        raise BadValue(f"{what} {_as_text(raw)} is not a flag: give true or false")
    return _FLAGS[raw.lower()]


def backoff(what: str, raw: bytes) -> Backoff:
    """A back-off as a JSON object."""
    try:
        return msgspec.json.decode(raw, type=Backoff)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadValue(f'{what} {_as_text(raw)} is not a back-off ({error}): give {{"base": 1, "factor": 2}}') from None


def code(what: str, raw: bytes) -> str | int:
    """An error code: an integer if it is all digits, otherwise text."""
    return int(raw) if _WHOLE.fullmatch(raw) else text(what, raw)


def _reader(hint: object) -> Reader:
    kinds = get_args(hint)
    return text if str in kinds else number if float in kinds else whole


PUT: Mapping[str, Reader] = {
    **{option: _reader(hint) for option, hint in get_type_hints(PutOptions).items()}, "timeout": number
}  # fmt: skip
TUBE: Mapping[str, Reader] = {
    "ttl": number, "ttr": number, "pri": whole, "callback": text, "capacity": whole, "temporary": flag,
    "max_attempts": whole, "backoff": backoff, "period": number, "utube_limit": whole, "fair": flag, "aging": number,
    "retention": number, "max_payload": whole, "shards": whole,
}  # fmt: skip


def options(args: Args, known: Mapping[str, Reader]) -> dict[str, Any]:
    """Parse pairs of an option name, in any case, and its value."""
    given: dict[str, Any] = {}
    for at in range(0, len(args), 2):
        name = text("option", args[at]).lower()
        if name not in known:
            raise BadValue(f"option {shown(name.upper())} is unknown: use {', '.join(known).upper() or 'no option'}")
        if at + 1 == len(args):
            raise BadValue(f"option {name.upper()} has no value: give one after it")
        if name in given:
            raise BadValue(f"option {name.upper()} is given twice: give it once")
        given[name] = known[name](name, args[at + 1])
    return given


def task_id(tube: Tube, raw: bytes) -> int | str:
    """A task's id: a number in leased kinds, text in the others."""
    return whole("task id", raw) if tube.stored.kind.leased else text("task id", raw)
