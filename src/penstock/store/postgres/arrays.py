"""Arrays as the server reads them: psycopg writes lists item by item, which was half the time of a put_many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_BYTEA, _BYTEA_ARRAY = 17, 1001
_HEAD = Struct("!iiIii")  # dimensions, whether any is NULL, the type, how many, the number of the first
_length = Struct("!i").pack


class Payloads(bytes):
    """A bytea[] in the binary format."""


class _PayloadsDumper(Dumper):
    format = Format.BINARY
    oid = _BYTEA_ARRAY

    def dump(self, obj: Payloads) -> Payloads:
        return obj


def adapt(context: AdaptContext) -> None:
    """Let a connection or a cursor send Payloads."""
    assert context.adapters is not None
    context.adapters.register_dumper(Payloads, _PayloadsDumper)


def payloads(items: Sequence[bytes]) -> Payloads:
    """One array of them; there must be one at least."""
    head = _HEAD.pack(1, 0, _BYTEA, len(items), 1)
    return Payloads(b"".join([head, *[part for item in items for part in (_length(len(item)), item)]]))


def numbers(items: Iterable[int]) -> str:
    """The text of an array, for a parameter that is cast."""
    return "{" + ",".join(map(str, items)) + "}"
