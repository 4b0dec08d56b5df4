"""How a task ended, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.core import codec, names
from penstock.core.attempts import Attempt, read_attempts
from penstock.core.ending import Ending, OutcomeLookup, decode_code
from penstock.core.options import Tube as StoredTube
from penstock.core.values import Seconds
from penstock.core.values import timeout as check_timeout
from penstock.errors import NoSuchTube, NotFound, TaskFailed
from penstock.operations.operation import Call, Operation
from penstock.operations.store_ops import OutcomeOp

if TYPE_CHECKING:
    from penstock.core.task import Record
    from penstock.runtime.runtime import BrokerRuntime


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """The end of a task: `status` is done, failed, cancelled, deleted, expired, or unknown for an address that was
    never seen or is past its retention; from a handle also buried, or gone for a task whose end is not kept.
    `result` is that of ack, `error` and `code` those of fail, or the reason of a cancel or bury; `errors` has failed
    attempts, newest last, and is not compared by ==."""

    status: str
    result: object = None
    error: str | None = None
    code: str | int | None = None
    errors: list[Attempt] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._end == other._end

    def __ne__(self, other: object) -> bool:
        return not self == other  # Struct's own compares all fields

    def __hash__(self) -> int:
        return hash(self._end)

    @property
    def _end(self) -> tuple[object, ...]:
        return self.status, self.result, self.error, self.code

    def unwrap(self) -> object:
        """Return the result; NotFound if nothing is known of the task, TaskFailed if it ended without success."""
        if self.status == "done":
            return self.result
        if self.status == "unknown":
            raise NotFound("the task is not known: it was never put, or its outcome is past the tube's retention")
        if self.status == "gone":
            raise NotFound(
                "the task has ended and its outcome is not kept: its function is annotated -> None, it was deleted, or "
                "the tube's retention is over"
            )
        if self.status != "failed":
            why = "" if self.error is None else f" ({self.error})"
            message = f"the task was {self.status} before it was done{why}: put it again if it still matters"
            raise TaskFailed(message, self.error, self.code, self.errors)
        code = "" if self.code is None else f" (code {self.code})"
        raise TaskFailed(f"the task failed{code}: {self.error}", self.error, self.code, self.errors)


GONE = Outcome("gone")


def await_outcome(
    runtime: BrokerRuntime, tube: StoredTube, address: str, timeout: Seconds | None
) -> Operation[Outcome]:
    """Wait for the task that holds the address now. Returns its outcome; TimeoutError if it does not end in time."""
    label, limit = names.label("address", address), check_timeout(timeout)
    first: OutcomeLookup = yield OutcomeOp(runtime, tube, label)
    if first.id is None:
        return Outcome("unknown") if first.ending is None else make_outcome(first.ending)
    id = first.id
    return (yield from _await(runtime, tube, id, lambda: find_outcome(runtime, tube, id), f"of address {label}", limit))


def await_task(
    runtime: BrokerRuntime, tube: StoredTube, id: int, timeout: Seconds | None, *, success_kept: bool = True
) -> Operation[Outcome]:
    """Wait for the task with that id. TimeoutError if it does not end in time, TaskFailed as soon as it is buried.

    NotFound if it was never put. A task that leaves its tube without an outcome during the wait counts as done. Unless
    success is kept, a task that was done before is `gone`.
    """
    seen = False

    def look() -> Operation[Outcome | None]:
        nonlocal seen
        # First, so that other processes know that someone waits for the task to end.
        found: OutcomeLookup = yield Call(lambda: runtime.store.outcomes(tube, [id])[0], ("outcome by id", tube.no))
        if found.ending is not None:
            return make_outcome(found.ending) if seen or success_kept or found.ending.status != "done" else GONE
        if found.unknown:
            raise never_put(tube, id)
        if found.id is None:
            return Outcome("done") if seen else GONE
        seen = True
        record: Record | None = yield Call(lambda: runtime.store.get(tube, [id])[0])
        if record is not None and record.state == "!":
            why = "" if record.reason is None else f": {record.reason}"
            message = f"task {id} of tube {tube.name} is buried{why}; kick it to try it again"
            raise TaskFailed(message, record.reason, errors=read_attempts(record.errors))
        return None

    return (yield from _await(runtime, tube, id, look, str(id), check_timeout(timeout)))


def never_put(tube: StoredTube, id: int) -> NotFound:
    """The error for an id that the tube never gave to a task."""
    return NotFound(f"task {id} was never put into tube {tube.name}: check the id and the tube")


def find_outcome(runtime: BrokerRuntime, tube: StoredTube, id: int) -> Operation[Outcome | None]:
    """The outcome of the task with that id; None while it is in its tube."""
    found: OutcomeLookup = yield Call(lambda: runtime.store.outcomes(tube, [id])[0], ("outcome by id", tube.no))
    if found.id is not None:
        return None
    return Outcome("done") if found.ending is None else make_outcome(found.ending)


def _await(
    runtime: BrokerRuntime, tube: StoredTube, id: int, look: Callable[[], Operation[Outcome | None]], which: str,
    limit: float | None,
) -> Operation[Outcome]:  # fmt: skip
    try:
        outcome = yield from runtime.wait_for(("task", tube.no, id), tube, look, limit)
    except NoSuchTube:
        _ = runtime.store  # raises if the tube is gone because this broker was closed
        return Outcome("deleted")
    if outcome is None:
        raise TimeoutError(f"the task {which} in tube {tube.name} did not end within {limit:g} s")
    return outcome


def buried_outcome(record: Record) -> Outcome:
    """The outcome that a handle shows for a buried task."""
    return Outcome("buried", error=record.reason, errors=read_attempts(record.errors))


def make_outcome(ending: Ending) -> Outcome:
    """Decode a stored outcome."""
    result = None if ending.result is None else codec.decode(ending.result)
    return Outcome(ending.status, result, ending.error, decode_code(ending.code), read_attempts(ending.errors))
