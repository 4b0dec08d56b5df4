"""Tubes that lease nothing: round, whose elements stay, and reliable, whose messages anyone may ack."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

from penstock.broker.group_handle import Group
from penstock.broker.outcome import Outcome
from penstock.broker.tube import TaskOrId, Tube, taken_tasks
from penstock.core.ids import text_id
from penstock.core.kind import must_have, unsupported
from penstock.core.lifecycle import Move
from penstock.core.select import Deliveries, Sweep
from penstock.core.task import Facts, Record, Task, TubeRef, make_task, record_of
from penstock.core.values import MAX_WHOLE, Seconds, flag, span_ms, whole
from penstock.errors import BadValue, NotTaken
from penstock.operations.operation import Operation, blocking

log = logging.getLogger("penstock")

_ack: Callable[..., Operation[None]] = Tube.ack.operation  # type: ignore[attr-defined]
_ack_many: Callable[..., Operation[Any]] = Tube.ack_many.operation  # type: ignore[attr-defined]


class UnleasedTube(Tube):
    """A tube whose tasks have string ids and are leased to no session. Used as it is for kind round."""

    def kick(self, count: int | None = 1) -> int:
        raise unsupported(self.stored.kind, "kick")

    def release_all(self) -> int:
        raise unsupported(self.stored.kind, "release_all")

    def wait(self, address: str, timeout: Seconds | None = None) -> Outcome:
        raise unsupported(self.stored.kind, "wait")

    def group(self, name: str, *, create: bool = True) -> Group:
        raise unsupported(self.stored.kind, "group")

    def _text(self, task: TaskOrId) -> str:
        if not isinstance(task, Facts):
            return text_id(self.stored.kind, task)
        return cast(str, self._own(task).address)

    def _move(
        self, verb: str, task: TaskOrId, extra: int = 0, reason: str | None = None, *, result: bytes | None = None,
        code: str | None = None,
    ) -> Move:  # fmt: skip
        must_have(self.stored.kind, verb)
        return Move(verb, 0, name=self._text(task))

    def _free_move(self, verb: str, task: TaskOrId, reason: str | None) -> Move:
        if verb != "delete":
            must_have(self.stored.kind, verb)
        return Move(verb, 0, name=self._text(task))

    def _get(self, id: TaskOrId | None, address: str | None = None) -> Record | None:
        if id is None or address is not None:
            return super()._get(id, address)
        return self.runtime.store.get(self.stored, [self._text(id)])[0]

    def _number(self, id: TaskOrId) -> int:
        record = record_of(id) if isinstance(id, Facts) else self._get(id)
        if record is None:
            raise self._not_found(id)
        return record.id

    def _release_untaken(self, tasks: Iterable[Task]) -> None:
        """Return nothing to run: tasks are not leased, so there is nothing to release."""

    def _set_aside(self, record: Record, error: BadValue) -> None:
        """Skip a task that cannot be decoded, because it cannot be buried in this kind; peek and inspect show it."""
        log.warning("skipped task %s of tube %s: %s", record.address, self.name, error)


class ReliableTube(UnleasedTube):
    """Messages stay delivered until anyone acks them by id; only recover delivers them again."""

    @blocking
    def ack(self, task_or_id: Any, result: object = None) -> Operation[Any]:
        """Ack one message; NotTaken unless it is delivered. For a list, returns the removed ids, like ack_many."""
        if isinstance(task_or_id, (list, tuple)):
            return (yield from _ack_many(self, task_or_id))
        return (yield from _ack(self, task_or_id, result))

    def _acked(self, records: Iterable[Record | None]) -> list[str]:
        return [record.address for record in records if record is not None and record.address is not None]

    def recover(self, count: int, elapsed: Seconds) -> list[Task]:
        recovered = self.runtime.store.sweep(
            self.stored, Sweep("recover", whole("count", count), span_ms("elapsed", elapsed))
        )
        self.runtime.publish(recovered.effects)
        return taken_tasks(self, (record for record in recovered.records if record is not None))

    def inspect(self, start: int, count: int, pending: bool | None = False) -> list[Task]:
        place = whole("start", start, -MAX_WHOLE, MAX_WHOLE)
        delivered = pending is not None and flag("pending", pending)
        listed = self.runtime.store.find(self.stored, Deliveries(place, whole("count", count), delivered))
        return [make_task(record, self) for record in listed]

    def _release_failed(self, task: Facts[TubeRef], error: BaseException) -> None:
        """Leave the message of a failed block delivered: recover hands it out again."""

    def _not_taken(self, move: Move) -> NotTaken:
        return NotTaken(f"task {move.name} of tube {self.name} is not delivered: it was acked already, or never taken")
