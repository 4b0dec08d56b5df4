"""Errors of attempts: how the last hand-outs of a task ended that did not end with an ack.

They are kept with the task, and later with its outcome, as msgpack: a list of (attempt, at, host, error, traceback).
"""

from __future__ import annotations

import msgspec

#: So many are kept, the newest ones.
MAX_ATTEMPTS_KEPT = 5
MAX_TRACEBACK = 10_000
LAPSED = "not settled before its ttr was over"
SESSION_ENDED = "not settled before its session ended"


class Failure(msgspec.Struct, frozen=True):
    """How an attempt ended, as whoever ends it tells it: the host is empty where only the store noticed."""

    error: str
    traceback: str = ""
    host: str = ""


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that ended without an ack: its number, when it ended (seconds since the epoch, by the store's clock),
    the host that ran it (empty where only the store noticed the end), the error, and the traceback of an exception."""

    attempt: int
    at: float
    host: str
    error: str
    traceback: str


# The same as it is stored, its moment in milliseconds.
StoredAttempt = tuple[int, int, str, str, str]
_decode = msgspec.msgpack.Decoder(list[StoredAttempt]).decode
_encode = msgspec.msgpack.Encoder().encode


def entry_of(attempt: int, now: int, failure: Failure) -> StoredAttempt:
    """What is stored of one attempt."""
    return attempt, now, failure.host, failure.error, failure.traceback


def append(stored: bytes | None, entry: StoredAttempt | None) -> bytes | None:
    """What is stored with one more attempt."""
    if entry is None:
        return stored
    return _encode([*_entries(stored), entry][-MAX_ATTEMPTS_KEPT:])


def read_attempts(stored: bytes | None) -> list[Attempt]:
    """For people, newest last."""
    return [Attempt(number, at / 1000, *rest) for number, at, *rest in _entries(stored)]


def _entries(stored: bytes | None) -> list[StoredAttempt]:
    try:
        return [] if stored is None else _decode(stored)
    except msgspec.MsgspecError:  # another program wrote it: the task matters more
        return []
