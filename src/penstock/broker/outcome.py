"""How an addressed task ended, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.core import codec, names
from penstock.core.ending import Ending, Sought, decode_code
from penstock.core.numbers import timeout as check_timeout
from penstock.core.options import Tube as StoredTube
from penstock.errors import NoSuchTube, NotFound, TaskFailed
from penstock.operations.operation import Call, Flow
from penstock.operations.store_ops import Seek

if TYPE_CHECKING:
    from penstock.core.task import Record
    from penstock.runtime.runtime import Hub


class Outcome(msgspec.Struct, frozen=True):
    """The end of a task: `status` is done, failed, cancelled, deleted, expired, or unknown for an address that was
    never seen or is past its retention; `result` is what ack gave, `error` and `code` what fail gave."""

    status: str
    result: object = None
    error: str | None = None
    code: str | int | None = None

    def unwrap(self) -> object:
        """The result; NotFound when nothing is known of the task, TaskFailed when it ended without success."""
        if self.status == "done":
            return self.result
        if self.status in ("unknown", "gone"):
            raise NotFound(
                "nothing is known of the task: it was never put, or its outcome is past the tube's retention"
            )
        if self.status != "failed":
            raise TaskFailed(f"the task was {self.status} before it was done: put it again if it still matters")
        code = "" if self.code is None else f" (code {self.code})"
        raise TaskFailed(f"the task failed{code}: {self.error}")


def await_outcome(hub: Hub, tube: StoredTube, address: str, timeout: float | None) -> Flow[Outcome]:
    """The outcome of the task that holds the address now; TimeoutError when it does not come in time."""
    label, limit = names.label("address", address), check_timeout(timeout)
    first: Sought = yield Seek(hub, tube, label)
    if first.id is None:
        return Outcome("unknown") if first.ending is None else make_outcome(first.ending)
    id = first.id
    return (yield from _await(hub, tube, id, lambda: find_outcome(hub, tube, id), f"of address {label}", limit))


def await_task(hub: Hub, tube: StoredTube, id: int, timeout: float | None) -> Flow[Outcome]:
    """The outcome of the task with that id; TimeoutError when it does not come in time, TaskFailed once buried."""

    def look() -> Flow[Outcome | None]:
        outcome = yield from find_outcome(hub, tube, id)  # first: so other processes know that its end is waited for
        if outcome is not None:
            return outcome
        record: Record | None = yield Call(lambda: hub.store.get(tube, [id])[0])
        if record is not None and record.state == "!":
            raise TaskFailed(f"task {id} of tube {tube.name} is buried: {record.reason}; kick it to try it again")
        return None

    return (yield from _await(hub, tube, id, look, str(id), check_timeout(timeout)))


def find_outcome(hub: Hub, tube: StoredTube, id: int) -> Flow[Outcome | None]:
    """The outcome of the task with that id; None while it is in its tube."""
    found: Sought = yield Call(lambda: hub.store.outcome(tube, id), ("sought", tube.no))
    if found.id is not None:
        return None
    return Outcome("done") if found.ending is None else make_outcome(found.ending)


def _await(
    hub: Hub, tube: StoredTube, id: int, look: Callable[[], Flow[Outcome | None]], which: str, limit: float | None
) -> Flow[Outcome]:
    try:
        outcome = yield from hub.wait_for(("task", tube.no, id), tube, look, limit)
    except NoSuchTube:
        _ = hub.store  # raises when it was this broker's close that took the tube away
        return Outcome("deleted")
    if outcome is None:
        raise TimeoutError(f"the task {which} in tube {tube.name} did not end within {limit:g} s")
    return outcome


def make_outcome(ending: Ending) -> Outcome:
    """The outcome, for people."""
    result = None if ending.result is None else codec.decode(ending.result)
    return Outcome(ending.status, result, ending.error, decode_code(ending.code))
