"""Parses arguments: the tube, task ids, data, session and lease."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import click
import msgspec

from penstock.broker.tube import Tube
from penstock.broker.tube_factory import find_tube
from penstock.cli import completion
from penstock.cli.existing_store import connect_existing
from penstock.core.lease import HandOut, hand_out
from penstock.errors import BadValue, NotTaken

_INTEGER = re.compile(r"-?[0-9]+")
# The most digits that are converted: enough to be refused as too large, and few enough for int().
_DIGITS = 40

tube_argument = click.argument("tube", shell_complete=completion.tubes)
id_argument = click.argument("id")
# For the commands that anyone may use: ID, or else --address.
optional_id_argument = click.argument("id", required=False)
address_option = click.option("--address", help="The address of the task, instead of its ID.")
session_option = click.option(
    "--session",
    metavar="ID",
    envvar="PENSTOCK_SESSION",
    shell_complete=completion.sessions,
    help="The session that holds the task, as printed by take.",
)

lease_option = click.option("--lease", metavar="TEXT", help="The lease, as printed by take --json. Needs no --session.")


class Seconds(click.FloatRange):
    """Seconds in a range; refuses NaN, which click would accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error if it is not in the range."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return seconds


class Bytes(click.ParamType[int]):
    """A number of bytes, optionally with K, M or G for multiples of 1024."""

    name = "size"
    _FACTORS: ClassVar = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; a usage error if it is not a size."""
        match = re.fullmatch(r"([0-9]{1,15})([kmg]?)", str(value).lower())
        if match is None:
            self.fail(f"{value!r} is not a size: give bytes, or a number with K, M or G, such as 512M.", param, ctx)
        return int(match[1]) * self._FACTORS[match[2]]


@contextmanager
def opened(url: str, name: str) -> Iterator[Tube]:
    """Open an existing tube, for a new session."""
    with connect_existing(url) as broker:
        yield find_tube(broker.runtime, broker.session_handle, name)


@contextmanager
def held(url: str, name: str, id: str | None, session: str | None, lease: str | None) -> Iterator[Tube]:
    """Open an existing tube for the given session, or else for the session that holds the lease."""
    with connect_existing(url) as broker:
        if session is None and lease is not None:
            holders = (each.id for each in broker.sessions() if (name, id) in [(tube, str(n)) for tube, n in each.held])
            session = next(holders, None)
        session_handle = broker.session_handle if session is None else broker.session(id=session).session_handle
        try:
            yield find_tube(broker.runtime, session_handle, name)
        except NotTaken as error:
            if session is None and lease is None:
                raise NotTaken(f"{error}; name the session that took it with --session ID") from None
            raise


def task_id(tube: Tube, text: str) -> int | str:
    """Parse a task id: an integer for kinds with leases, otherwise a text."""
    return int(text[:_DIGITS]) if tube.stored.kind.leased and _INTEGER.fullmatch(text) else text


def selected(tube: Tube, id: str | None, address: str | None) -> int | str:
    """The id of the task that ID or --address names."""
    if (id is None) == (address is None):
        raise BadValue("give either the ID of a task or its --address")
    return task_id(tube, id) if id is not None else tube.peek(address=address).id


def which(tube: Tube, text: str, lease: str | None) -> HandOut | int | str:
    """Parse a task id, or a reference to one of its leases if `lease` is given."""
    id = task_id(tube, text)
    return id if lease is None or not isinstance(id, int) else hand_out(id, lease)


def data(text: str, *, raw: bool = False) -> object:
    """Parse DATA as JSON, or else as text. `-` is standard input, `@file` a file. With `raw`, return bytes."""
    content = _content(text)
    return content if raw else parsed(content)


def parsed(content: bytes) -> object:
    """Decode bytes as JSON, or else as text."""
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise BadValue("DATA is nested too deeply: flatten it, or put it with --bytes") from None
    except (msgspec.DecodeError, ValueError):
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadValue("DATA is not UTF-8 text: put it with --bytes") from None


def _content(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            remedy = f"put the text itself as '\"{text}\"'"
            raise BadValue(f"DATA {text} names a file that cannot be read ({error.strerror}): {remedy}") from None
    return text.encode("utf-8", "surrogateescape")
