"""redis-py's errors as penstock's, in one place, and which of them say that nothing was done."""

from __future__ import annotations

import redis

from penstock.errors import OutcomeUnknown, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnavailable


class Unsent(Exception):
    """The server never had the whole command: it is safe to send it again."""


class Unheard(Exception):
    """The command was sent and its answer never came."""


# Answers that say: not now, and nothing was done.
_LATER = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


def not_now(error: BaseException) -> bool:
    """Whether the server refused for the moment, having done nothing."""
    return isinstance(error, _LATER)


def translated(error: BaseException, label: str) -> StoreError:
    """The error to raise instead, saying what to do next."""
    text = str(error)
    if isinstance(error, Unheard):
        return OutcomeUnknown(
            f"{label} broke off before it answered ({error.__cause__}): the call may or may not be stored; look first"
        )
    refused = error.__cause__ if isinstance(error, Unsent) else error
    if isinstance(refused, redis.exceptions.AuthenticationError):
        return StoreUnavailable(f"{label} refuses the user or the password of its URL ({refused}): check both")
    if isinstance(refused, redis.sentinel.MasterNotFoundError):
        found = str(refused).partition(" : ")[0]  # the rest is every setting of the driver's
        return StoreUnavailable(f"{label} cannot be used now ({found}): check the sentinels, and the name")
    if "DB index is out of range" in f"{text}{refused}":
        return StoreUnavailable(f"{label} has no such database ({refused}): name another number in the URL")
    if isinstance(error, (Unsent, redis.ConnectionError, redis.TimeoutError, OSError)) or not_now(error):
        cause = error.__cause__ or error
        return StoreUnavailable(f"{label} cannot be reached now ({cause}): check that it runs, then try again")
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command" in text:
        return StoreFull(f"{label} is at its memory limit: raise maxmemory; takes, acks and deletes still work")
    if text.startswith("MISCONF"):
        return StoreFull(f"{label} cannot write to its disk and refuses writes ({text}): free space there")
    if isinstance(error, redis.exceptions.ResponseError) and "WRONGTYPE" in text:
        return StoreCorrupt(f"{label} has keys of another program under this prefix ({text}): choose another prefix")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreUnavailable(f"{label} does not permit this user what penstock needs ({text}): extend its ACL")
    if text.startswith("BUSY"):
        return StoreBusy(f"{label} is busy with a script of somebody's: wait, or SCRIPT KILL it ({text})")
    return StoreError(f"{label}: {text}")
