"""Everything penstock raises.

PenstockError
├── BadValue (ValueError)         a value that no store would accept
├── UnsupportedOption             an option that this kind or store does not have
├── NoSuchTube (LookupError)      the tube was never created, was dropped or moved
├── TubeExists                    create_tube of a name in use
├── TubeMismatch                  the stored tube has another kind or option
├── TubeBusy                      drop while tasks are taken or takers wait
├── TubeFull                      the tube was full until the put's timeout
├── NotFound (LookupError)        no such task or session
├── NotTaken                      the caller does not hold the lease, or no longer
├── DuplicateAddress              the address is in use in this tube
├── PayloadTooLarge               data over the tube's max_payload
├── TaskFailed                    the task waited for failed, expired or was deleted
├── LeaseLost                     the worker lost the lease of the task that a handler runs
│   └── Cancelled                 and the task will not be run again
└── StoreError
    ├── StoreUnavailable          cannot be reached or opened now
    ├── StoreBusy                 another process holds a lock for too long
    ├── StoreFull                 no space left; nothing was half done
    ├── StoreCorrupt              the stored bytes are damaged, or not penstock's
    ├── SchemaMismatch            stored by another version of penstock
    └── OutcomeUnknown            the call may or may not have been stored
"""

from __future__ import annotations

import collections.abc
import typing


class PenstockError(Exception):
    """Base class of all errors that penstock raises on purpose."""


class BadValue(PenstockError, ValueError):
    """A value was refused before anything was stored."""


class UnsupportedOption(PenstockError):
    """The kind or the store does not have this option; the message names those that do."""


class NoSuchTube(PenstockError, LookupError):
    """The tube was never created, has been dropped, or was moved to another store, which the message names."""


class TubeExists(PenstockError):
    """`create_tube` was given the name of an existing tube; `broker.tube` opens it."""


class TubeMismatch(PenstockError):
    """The stored tube has another kind or option than the caller gave."""


class TubeBusy(PenstockError):
    """The tube cannot be dropped while tasks are taken or takers wait."""


class TubeFull(PenstockError):
    """The tube was full until the put's timeout was over; nothing was stored."""


class NotFound(PenstockError, LookupError):
    """The task or session does not exist, or no longer exists."""


class NotTaken(PenstockError):
    """The caller does not hold the lease: it lapsed, was settled, or was never the caller's. Nothing changed."""


class DuplicateAddress(PenstockError):
    """Another task of this tube has the address."""


class PayloadTooLarge(PenstockError):
    """The encoded data is larger than the tube's max_payload."""


class TaskFailed(PenstockError):
    """The task that was waited for failed, was deleted or expired.

    `error` and `code` are those of fail or bury; `errors` is the list of failed `Attempt`s.
    """

    def __init__(
        self, message: str, error: str | None = None, code: str | int | None = None,
        errors: collections.abc.Iterable[typing.Any] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.error = error
        self.code = code
        self.errors = list(errors)


class LeaseLost(PenstockError):
    """The lease of the task that a handler is running has ended, so its result will be dropped.

    `cause` is cancelled, deleted, buried, released or lapsed.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Cancelled(LeaseLost):
    """The lease has ended, and the task will not be run again: it was cancelled, deleted or buried."""


class StoreError(PenstockError):
    """The store failed; the cause is chained."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or opened now."""


class StoreBusy(StoreError):
    """Another process held a lock of the store for too long."""


class StoreFull(StoreError):
    """The store has no space left. Nothing was half done, and calls succeed again once there is space."""


class StoreCorrupt(StoreError):
    """The stored bytes are damaged or are not penstock's; they were left unchanged."""


class SchemaMismatch(StoreError):
    """The store was written by another version of penstock."""


class OutcomeUnknown(StoreError):
    """The connection broke during the call, so its effect may or may not be stored."""
