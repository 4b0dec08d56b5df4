"""The handle of a task that was put: waits for it and reads how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

from penstock.broker.outcome import Outcome, await_task, find_outcome
from penstock.broker.tube import Tube, current_record
from penstock.core.numbers import Seconds
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

        TaskFailed as soon as it is found buried, because then nobody works on it until it is kicked.
        """
        outcome = yield from await_task(self._tube.runtime, self._tube.stored, self.id, timeout)
        return self._read(outcome)

    def result(self, timeout: Seconds | None = None) -> R:
        """What the function returned, when it has; TaskFailed when it did not end well."""
        return cast(R, self.wait(timeout).unwrap())

    @property
    def outcome(self) -> Outcome | None:
        """How the task ended; None while it is in its tube."""
        current_record(self._tube, self.id)  # applies what is due, so that a ttl that has passed is seen
        found = blocking(find_outcome)(self._tube.runtime, self._tube.stored, self.id)
        return None if found is None else self._read(found)

    @property
    def progress(self) -> float | None:
        """What its handler last said of its progress; None when it said nothing, or the task has left its tube."""
        record = current_record(self._tube, self.id)
        return None if record is None else record.progress

    def _read(self, outcome: Outcome) -> Outcome:
        if outcome.result is None:
            return outcome
        return msgspec.structs.replace(outcome, result=self._handler.read_result(outcome.result))
