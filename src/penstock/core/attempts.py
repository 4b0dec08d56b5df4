"""Errors of attempts: how the last attempts at a task failed.

Stored with the task, and later with its outcome, as msgpack: a list of (attempt, at, host, error, traceback).
"""

from __future__ import annotations

import msgspec

#: Only the newest attempts are kept.
MAX_ATTEMPTS_KEPT = 5
MAX_TRACEBACK = 10_000
LAPSED = "not settled before its ttr was over"
SESSION_ENDED = "not settled before its session ended"


class Failure(msgspec.Struct, frozen=True):
    """How an attempt failed, as its worker reported it. `host` is empty if only the store noticed the failure."""

    error: str
    traceback: str = ""
    host: str = ""


class Attempt(msgspec.Struct, frozen=True):
    """A failed attempt: its number, when it ended (seconds since the epoch, by the store's clock), the host that ran it
    (empty if only the store noticed the end), the error, and the traceback if there was an exception."""

    attempt: int
    at: float
    host: str
    error: str
    traceback: str


# An Attempt as stored, with `at` in milliseconds.
StoredAttempt = tuple[int, int, str, str, str]
_decode = msgspec.msgpack.Decoder(list[StoredAttempt]).decode
_encode = msgspec.msgpack.Encoder().encode


def entry_of(attempt: int, now: int, failure: Failure) -> StoredAttempt:
    """The stored form of a failed attempt."""
    return attempt, now, failure.host, failure.error, failure.traceback


def append(stored: bytes | None, entry: StoredAttempt | None) -> bytes | None:
    """Add an attempt to the stored ones. Returns their new stored form."""
    if entry is None:
        return stored
    return _encode([*_entries(stored), entry][-MAX_ATTEMPTS_KEPT:])


def read_attempts(stored: bytes | None) -> list[Attempt]:
    """Decode stored attempts. Returns them oldest first."""
    return [Attempt(number, at / 1000, *rest) for number, at, *rest in _entries(stored)]


def _entries(stored: bytes | None) -> list[StoredAttempt]:
    try:
        return [] if stored is None else _decode(stored)
    except msgspec.MsgspecError:  # overwritten by another program: show the task without them
        return []
