"""Parses queries, JSON bodies and forms, within limits; errors name the field and its value."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from penstock.core.names import shown
from penstock.errors import BadValue
from penstock.server.http.http_errors import Refused
from penstock.server.paging import MEBIBYTE

LOOPBACK = ("localhost", "127.0.0.1", "::1")

T = TypeVar("T", bound=msgspec.Struct)
# The end of msgspec's message about one field.
_AT = re.compile(r" - at `\$\.(\w+)`$")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the HTTP server: its names and limits. The defaults are for one host."""

    #: Accepted names in the header `Host`, without ports.
    hosts: tuple[str, ...] = LOOPBACK
    #: Whether browsers use https, so that the cookie is only sent over https.
    secure: bool = False
    max_body: int = 8 * MEBIBYTE
    #: The time for the body of a request.
    body_seconds: float = 30.0
    #: Open streams of events, and sessions of HTTP callers.
    max_streams: int = 200
    max_sessions: int = 1000


def read_query(text: str, kind: type[T]) -> T:
    """Parse the query string."""
    pairs = dict(parse_qsl(text, keep_blank_values=True))
    return _convert("query", kind, lambda: msgspec.convert(pairs, kind, strict=False), lambda: pairs)


def read_json(text: bytes, kind: type[T]) -> T:
    """Parse a body; an empty one counts as {}."""
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
        raise BadValue(_describe(what, str(error), kind, given())) from None
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise BadValue(f"the {what} cannot be read: {error}") from None


def _fields(text: bytes) -> dict[str, str]:
    """The fields of an object, each as the JSON text that was sent."""
    try:
        sent = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {name: bytes(raw).decode("utf-8", "replace") for name, raw in sent.items()}


def _describe(what: str, words: str, kind: type[msgspec.Struct], given: dict[str, str]) -> str:
    at = _AT.search(words)
    if at and at[1] in given:
        value = shown(given[at[1]])[1:-1]  # JSON strings have their own quotes
        return f"{at[1]} {value} of the {what} is not accepted: {words[: at.start()]}"
    known = ", ".join(kind.__struct_fields__) or "nothing"
    return f"the {what} is not accepted: {words}; it accepts {known}"


_MAX_FORM = 256 * 1024
# Fields of a form: the tasks of a page, and some more.
_MAX_FIELDS = 200
Form = ImmutableMultiDict[str, str]


async def read_form(request: Request, options: Options) -> Form:
    """Parse a form of the dashboard."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != "application/x-www-form-urlencoded":
        raise Refused(415, "this address only accepts forms of the dashboard: programs use /api/")
    body = await read_body(request, replace(options, max_body=_MAX_FORM))
    try:
        return Form(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise Refused(400, "the form cannot be read: go back to the page and try again") from None


async def read_body(request: Request, options: Options) -> bytes:
    """Read the whole body. Raises Refused if it is too long or arrives too slowly."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > options.max_body:
        raise _too_long(options)
    parts, size = [], 0
    try:
        async with asyncio.timeout(options.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > options.max_body:
                    raise _too_long(options)
                parts.append(part)
    except TimeoutError:
        late = f"the body did not arrive within {options.body_seconds:g} s: send it at once, or in smaller parts"
        raise Refused(408, late, Connection="close") from None
    return b"".join(parts)


def _too_long(options: Options) -> Refused:
    return Refused(413, f"the body is over {options.max_body} bytes: send less at once")
