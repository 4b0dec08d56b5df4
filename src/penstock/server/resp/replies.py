"""Encodes replies of the Redis protocol, version 2 or 3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from penstock.errors import PenstockError

# RESP3 for newer clients, RESP2 for older ones.
RESP2, RESP3 = 2, 3


class Word:
    """A status, such as OK."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Fault:
    """An error reply: its code and its message."""

    __slots__ = ("code", "message")

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message


class Refused(Exception):
    """Raised for a command that cannot run; the fault is its reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(code, message)


class ArrayHead:
    """The header of an array whose items follow as separate replies."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


OK = Word("OK")

Reply: TypeAlias = (
    "bytes | str | int | float | bool | Word | Fault | ArrayHead | "
    "list[Reply] | tuple[Reply, ...] | dict[str, Reply] | None"
)


def fault_of(error: PenstockError) -> Fault:
    """The reply for a PenstockError: its class name is the code."""
    return Fault(type(error).__name__.upper(), str(error))


def encode(replies: Iterable[Reply], version: int) -> bytes:
    """The bytes of these replies."""
    out: list[bytes] = []
    for reply in replies:
        _write(out, reply, version)
    return b"".join(out)


def _write(out: list[bytes], reply: Reply, version: int) -> None:
    # Almost all replies have exactly these types, which are encoded alike in both versions.
    if type(reply) is list or type(reply) is tuple:
        out.append(b"*%d\r\n" % len(reply))
        for item in reply:
            _write(out, item, version)
    elif type(reply) is bytes:
        out.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif type(reply) is str:
        text = reply.encode("utf-8", "replace")
        out.append(b"$%d\r\n%b\r\n" % (len(text), text))
    else:
        _write_other(out, reply, version)


def _write_other(out: list[bytes], reply: Reply, version: int) -> None:
    match reply:
        case str():
            _write(out, str(reply), version)
        case list() | tuple():
            _write(out, list(reply), version)
        case bool():
            out.append((b"#t\r\n" if reply else b"#f\r\n") if version == RESP3 else b":%d\r\n" % reply)
        case int():
            out.append(b":%d\r\n" % reply)
        case None:
            out.append(b"_\r\n" if version == RESP3 else b"$-1\r\n")
        case float():
            text = repr(reply).encode()
            out.append(b",%b\r\n" % text if version == RESP3 else b"$%d\r\n%b\r\n" % (len(text), text))
        case Word():
            out.append(b"+%b\r\n" % reply.text.encode())
        case ArrayHead():
            out.append(b"*%d\r\n" % reply.count)
        case Fault():
            out.append(b"-%b %b\r\n" % (reply.code.encode(), _one_line(reply.message)))
        case dict():
            out.append(b"%%%d\r\n" % len(reply) if version == RESP3 else b"*%d\r\n" % (2 * len(reply)))
            for key, value in reply.items():
                _write(out, key, version)
                _write(out, value, version)


def _one_line(message: str) -> bytes:
    """The message without line breaks, because an error reply ends with its line."""
    return " ".join(message.split()).encode("utf-8", "replace")
