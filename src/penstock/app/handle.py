"""The handle of a task that was put: waits for it and reads how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

from penstock.broker.outcome import Outcome, await_task, buried_outcome, make_outcome
from penstock.broker.tube import Tube, current_record
from penstock.core.task import STATUS
from penstock.core.values import Seconds
from penstock.errors import NoSuchTube
from penstock.operations.operation import Operation, blocking

if TYPE_CHECKING:
    from penstock.app.handler import Handler

R = TypeVar("R")


class Handle(Generic[R]):
    """Waits for one task and reads how it ended. `handler.handle(id)` makes another one from the id."""

    def __init__(self, handler: Handler[..., R, object], tube: Tube, id: int) -> None:
        self._handler = handler
        self._tube = tube
        self.id = id

    def __repr__(self) -> str:
        return f"<Handle of {self._handler.name} {self.id} in {self._tube.name}>"

    @blocking
    def wait(self, timeout: Seconds | None = None) -> Operation[Outcome]:
        """How the task ended, when it has; TimeoutError when it does not end in time.

        TaskFailed as soon as it is found buried, because then nobody works on it until it is kicked. NotFound if it was
        never put.
        """
        outcome = yield from await_task(self._tube.runtime, self._tube.stored, self.id, timeout)
        return self._read(outcome)

    def result(self, timeout: Seconds | None = None) -> R:
        """What the function returned, when it has; TaskFailed when it did not end well, NotFound if nobody knows."""
        return cast(R, self.wait(timeout).unwrap())

    @property
    def status(self) -> str:
        """One word: ready, delayed, taken or buried; when it has ended, done, failed, cancelled, deleted or expired;
        gone if its outcome is not kept; unknown if it was never put."""
        return self._find()[0]

    @property
    def outcome(self) -> Outcome | None:
        """How the task ended, also if it is buried; None while it is ready, delayed or taken."""
        outcome = self._find()[1]
        return None if outcome is None else self._read(outcome)

    def cancel(self, reason: str | None = None) -> bool:
        """End the task with the outcome `cancelled`. Returns False if it was not in its tube."""
        return self._tube.cancel(self.id, reason)

    def _find(self) -> tuple[str, Outcome | None]:
        try:
            while True:
                record = current_record(self._tube, self.id)
                if record is not None:
                    word = STATUS[record.state].name.lower()
                    return word, buried_outcome(record) if record.state == "!" else None
                found = self._tube.runtime.store.outcome(self._tube.stored, self.id)
                if found.id is None:  # else it was put or kicked back between the two looks
                    break
        except NoSuchTube:  # dropped, with all its tasks
            return "deleted", Outcome("deleted")
        if found.ending is not None:
            return found.ending.status, make_outcome(found.ending)
        word = "unknown" if found.unknown else "gone"
        return word, Outcome(word)

    @property
    def progress(self) -> float | None:
        """What its handler last said of its progress; None when it said nothing, or the task has left its tube."""
        record = current_record(self._tube, self.id)
        return None if record is None else record.progress

    def _read(self, outcome: Outcome) -> Outcome:
        if outcome.result is None:
            return outcome
        return msgspec.structs.replace(outcome, result=self._handler.read_result(outcome.result))
