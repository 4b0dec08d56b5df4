"""The handle of a task that was put: waits for it and reads how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

import msgspec

from penstock.broker.outcome import GONE, Outcome, await_task, buried_outcome, make_outcome
from penstock.broker.tube import Tube, current_record
from penstock.core.task import STATUS, Record
from penstock.core.values import Seconds
from penstock.errors import NoSuchTube
from penstock.operations.operation import Operation, blocking

if TYPE_CHECKING:
    from penstock.app.handler import Handler

R = TypeVar("R")


class Found(NamedTuple):
    """What is known about a task.

    `id` is set while the task is in its tube or its outcome is kept, `record` while it is in its tube, `outcome` if it
    has ended or is buried. `before`: for a pending link of a chain, the tube and record of the link it waits for.
    """

    status: str
    id: int | None = None
    record: Record | None = None
    outcome: Outcome | None = None
    before: tuple[Tube, Record] | None = None


def find(tube: Tube, key: int | str) -> Found:
    """Look up the task with that id, or the last one with that address."""
    while True:
        found = tube.runtime.store.outcomes(tube.stored, [key])[0]
        if found.ending is not None:
            return Found(found.ending.status, found.last, outcome=make_outcome(found.ending))
        if found.id is None:
            word = "unknown" if found.unknown or isinstance(key, str) else "gone"
            return Found(word, outcome=Outcome(word))
        record = current_record(tube, found.id)
        if record is not None:
            outcome = buried_outcome(record) if record.state == "!" else None
            return Found(STATUS[record.state].name.lower(), record.id, record, outcome)
        # It has ended between the two reads, or is past its ttl, which is not applied yet.
        tube.runtime.apply_due(tube.stored)


class Handle(Generic[R]):
    """Waits for one task and reads how it ended. `handler.handle(id)` returns a handle for an id."""

    def __init__(self, handler: Handler[..., R, object], tube: Tube, id: int) -> None:
        self._handler = handler
        self._tube = tube
        self.id = id

    def __repr__(self) -> str:
        return f"<Handle of {self._handler.name} {self.id} in {self._tube.name}>"

    @blocking
    def wait(self, timeout: Seconds | None = None) -> Operation[Outcome]:
        """Wait for the end of the task. Raises TimeoutError if it does not end in time.

        Raises TaskFailed as soon as it is found buried, because it does not run again until it is kicked, and NotFound
        if it was never put.
        """
        outcome = yield from await_task(
            self._tube.runtime, self._tube.stored, self.id, timeout, success_kept=self._handler.keeps
        )
        return self._read(outcome)

    def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the result of the function. Raises TaskFailed if it did not succeed, NotFound if it is not known."""
        return cast(R, self.wait(timeout).unwrap())

    @property
    def status(self) -> str:
        """One word: ready, delayed, taken or buried; when it has ended, done, failed, cancelled, deleted or expired;
        gone if its outcome is not kept; unknown if it was never put."""
        return self._lookup().status

    @property
    def outcome(self) -> Outcome | None:
        """How the task ended, also if it is buried; None while it is ready, delayed, taken or pending."""
        outcome = self._lookup().outcome
        return None if outcome is None else self._read(outcome)

    def cancel(self, reason: str | None = None) -> bool:
        """End the task with the outcome `cancelled`. Returns False if it was not in its tube."""
        return self._tube.cancel(self.id, reason)

    @property
    def progress(self) -> float | None:
        """The progress that its handler last reported; None if there is none or the task has left its tube."""
        record = self._lookup().record
        return None if record is None else record.progress

    def _lookup(self) -> Found:
        try:
            found = find(self._tube, self.id)
        except NoSuchTube:  # dropped, with all its tasks
            return Found("deleted", outcome=Outcome("deleted"))
        if found.status == "done" and not self._handler.keeps:  # only ends without success are kept for it
            return Found("gone", outcome=GONE)
        return found

    def _read(self, outcome: Outcome) -> Outcome:
        if outcome.result is None:
            return outcome
        return msgspec.structs.replace(outcome, result=self._handler.read_result(outcome.result))
