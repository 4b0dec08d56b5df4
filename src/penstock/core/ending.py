"""How a task ended, as stores keep it for whoever waits by its address."""

from __future__ import annotations

import msgspec

from penstock.core import codec, names
from penstock.errors import BadValue

# the event that removed a task -> the status of its outcome
STATUS_OF = {"ack": "done", "fail": "failed", "delete": "deleted", "ttl": "expired"}
STATUSES = (*STATUS_OF.values(), "cancelled")
# A new put of the address clears the old outcome for newcomers. Those who wait already still get it: they are
# told at once and look again every second, so a minute is far more than they need.
SUPERSEDED_MS = 60_000


class Ending(msgspec.Struct, frozen=True):
    """The outcome of one task. `result` is encoded data, `code` is JSON text, `errors` those of its attempts."""

    status: str
    result: bytes | None = None
    error: str | None = None
    code: str | None = None
    errors: bytes | None = None


# These outcomes are kept by the id of a task that has no address, too.
_KEPT_BY_ID = frozenset({"failed", "cancelled"})


def kept_under(address: str | None, ending: Ending | None) -> str | None:
    """The address that the outcome of a task of a leased kind is kept under, "" if by its id alone; None: it is not."""
    if ending is None or (address is None and ending.status not in _KEPT_BY_ID):
        return None
    return address or ""


class OutcomeLookup(msgspec.Struct, frozen=True):
    """What is known of a task: it is still there (`id` alone), it ended (`ending`, and `last`, its id), or nothing.

    `unknown`: nothing, and its id was never given.
    """

    id: int | None = None
    ending: Ending | None = None
    last: int | None = None
    unknown: bool = False


def encode_code(value: object) -> str | None:
    """An error code for programs, a short text or an int, as JSON text."""
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
    """The code as it was given."""
    return None if stored is None else msgspec.json.decode(stored, type=str | int)
