"""How a task ended, as stores keep it for callers that wait for it."""

from __future__ import annotations

import msgspec

from penstock.core import codec, names
from penstock.errors import BadValue

# the event that removed a task -> the status of its outcome
STATUS_OF = {"ack": "done", "fail": "failed", "delete": "deleted", "ttl": "expired"}
STATUSES = (*STATUS_OF.values(), "cancelled")
# A new put of the address hides the old outcome from new callers. Callers that already wait still get it: they are
# notified at once and poll every second, so a minute is more than enough.
SUPERSEDED_MS = 60_000


class Ending(msgspec.Struct, frozen=True):
    """The outcome of one task. `result` is encoded data, `code` is JSON text, `errors` those of its attempts."""

    status: str
    result: bytes | None = None
    error: str | None = None
    code: str | None = None
    errors: bytes | None = None


# These outcomes are also kept for tasks without an address, by id. `expired` only exists for those with a `reply_to`.
_KEPT_BY_ID = frozenset({"failed", "cancelled", "expired"})


class _Mark(str):
    """The type of KEEP_EXPIRY, so that no caller can pass an equal value."""

    __slots__ = ()


#: In place of a `reply_to`, of a task whose expiry is kept and whose success is not: see `Handler.make_item`.
KEEP_EXPIRY = _Mark("<")


def kept_under(address: str | None, ending: Ending | None) -> str | None:
    """The address to keep the outcome of a leased task under; "" to keep it by id only, None to keep nothing."""
    if ending is None or (address is None and ending.status not in _KEPT_BY_ID):
        return None
    return address or ""


class OutcomeLookup(msgspec.Struct, frozen=True):
    """What is known about a task: it is in its tube (only `id` is set), it ended (`ending`, and its id as `last`), or
    nothing is known. `unknown`: its id was never used."""

    id: int | None = None
    ending: Ending | None = None
    last: int | None = None
    unknown: bool = False


def encode_code(value: object) -> str | None:
    """An error code (a short str or an int) as JSON text."""
    if value is None:
        return None
    if type(value) is int:
        if not -names.MAX_ID <= value <= names.MAX_ID:
            raise BadValue("code is too large: give an int within ±2**53, or a str")
        return str(value)
    if not isinstance(value, str):
        raise BadValue(f"code {names.shown(value)} is {names.kind_of(value)}: give a str or an int")
    return codec.encode(names.label("code", value)).decode()


def decode_code(stored: str | None) -> str | int | None:
    """The error code that the caller gave."""
    return None if stored is None else msgspec.json.decode(stored, type=str | int)
