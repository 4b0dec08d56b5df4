"""How a tube's tasks are settled: the verbs of one task or several, each made of guarded moves."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.core import names
from penstock.core.ending import encode_code
from penstock.core.entry import encode_payload
from penstock.core.kind import kinds_with, must_have
from penstock.core.lifecycle import Move
from penstock.core.numbers import MAX_SECONDS, positive_ms, span_ms
from penstock.core.options import Tube as StoredTube
from penstock.core.options import refuse_option
from penstock.core.shapes import several
from penstock.core.task import Facts, Place, Record, Status
from penstock.errors import (
    BadValue,
    NotFound,
    NotTaken,
    OutcomeUnknown,
    PenstockError,
    StoreUnavailable,
    UnsupportedOption,
)
from penstock.operations.operation import Call, Flow, verb
from penstock.operations.store_ops import Moves
from penstock.runtime.wait_queue import pauses

if TYPE_CHECKING:
    from penstock.broker.session_handle import Seat

log = logging.getLogger("penstock")

TaskOrId = Facts[Place] | int | str

# For so many seconds the end of a `with` block outlasts its server. A session that cannot beat lapses after 15.
PATIENCE = 10.0


class Settling:
    """The part of a tube's handle that acks, fails, releases, touches, buries and deletes."""

    _seat: Seat
    _stored: StoredTube

    @property
    def name(self) -> str:
        """The tube's name."""
        return self._stored.name

    @property
    def kind(self) -> str:
        """The name of the tube's kind."""
        return self._stored.kind.name

    @verb
    def ack(self, task_or_id: TaskOrId, result: object = None) -> Flow[None]:
        """Done: the task leaves the tube. NotTaken unless this session holds its live lease.

        The result is kept for whoever waits for the task's address, and goes into its reply.
        """
        payload = None if result is None else encode_payload(self._stored, "result", result)
        yield from self._settle_leased(task_or_id, self._move("ack", task_or_id, result=payload))

    @verb
    def ack_many(self, tasks: Iterable[TaskOrId]) -> Flow[list[bool] | list[str]]:
        """Ack each that this session still holds, in one step; a bool for each, in order.

        In kind reliable the ids that were really removed.
        """
        must_have(self._stored.kind, "ack")
        given = list(several("tasks", tasks))
        records: list[Record | None] = yield Moves(self, [self._move("ack", task) for task in given])
        for task, record in zip(given, records, strict=True):
            if isinstance(task, Facts) and record is not None:
                task.status = Status.DONE
        return self._acked(records)

    def _acked(self, records: Iterable[Record | None]) -> list[bool] | list[str]:
        return [record is not None for record in records]

    @verb
    def fail(self, task_or_id: TaskOrId, error: str, code: str | int | None = None) -> Flow[None]:
        """Failed for good: the task leaves the tube. NotTaken unless this session holds its live lease.

        Error and code are kept as ack's result is.
        """
        reason = names.text("error", error)
        if reason is None:
            raise BadValue("error is None: give a str that says what failed")
        move = self._move("fail", task_or_id, reason=reason, code=encode_code(code))
        yield from self._settle_leased(task_or_id, move)

    @verb
    def release(self, task_or_id: TaskOrId, delay: float | None = 0) -> Flow[None]:
        """Back to its old place, after delay seconds if the kind has delays. NotTaken unless held."""
        extra = span_ms("delay", 0 if delay is None else delay)
        if extra and "delay" not in self._stored.kind.accepts:
            refuse_option(self._stored.kind, "delay")
        yield from self._settle_leased(task_or_id, self._move("release", task_or_id, extra))

    @verb
    def touch(self, task_or_id: TaskOrId, seconds: float) -> Flow[None]:
        """So many seconds more for this hand-out; nothing happens when it has no deadline. NotTaken unless held."""
        if not self._stored.kind.timed:
            raise UnsupportedOption(f"kind {self.kind} has no ttr to touch: these have it: {kinds_with('ttr')}")
        extra = positive_ms("seconds", seconds)
        yield from self._settle_leased(task_or_id, self._move("touch", task_or_id, extra))

    @verb
    def bury(self, task_or_id: TaskOrId, reason: str | None = None) -> Flow[None]:
        """Aside, until kicked; by anyone, in any state. A Task from take must still be leased."""
        yield from self._settle_any("bury", task_or_id, reason=names.text("reason", reason))

    @verb
    def delete(self, task_or_id: TaskOrId) -> Flow[None]:
        """Gone; by anyone, in any state. A Task from take must still be leased."""
        yield from self._settle_any("delete", task_or_id)

    @verb
    def cancel(self, task_or_id: TaskOrId, reason: str | None = None) -> Flow[bool]:
        """End the task with the outcome `cancelled`, in whatever state it is. Returns False if it is not in the tube.

        A handler that runs it loses its lease. A Task from take must still be leased: else NotTaken.
        """
        try:
            yield from self._settle_any("cancel", task_or_id, reason=names.text("reason", reason))
        except NotFound:
            return False
        return True

    @verb
    def _finish(self, task: Facts[Place]) -> Flow[None]:
        """Ack a task whose `with` block has ended."""
        yield from self._settle_at_last(task, self._move("ack", task))

    @verb
    def _give_back(self, task: Facts[Place], error: BaseException) -> Flow[None]:
        """Release a task whose `with` block raised, after the tube's back-off if it has one."""
        backoff = self._stored.backoff
        delay = 0.0 if backoff is None else backoff.delay(task.attempts, random.random())
        reason = names.text("reason", names.failure(error))
        try:
            extra = span_ms("delay", min(delay, MAX_SECONDS))
            yield from self._settle_at_last(task, self._move("release", task, extra, reason))
        except PenstockError as lost:
            # The block's own error matters more than that the task could not be given back.
            log.warning("task %s of tube %s was not given back: %s", task.id, self.name, lost)

    def _settle_at_last(self, task: Facts[Place], move: Move) -> Flow[None]:
        """Settle where nobody is left to try again: while a server is away, this does. The lease makes that safe."""
        settle: Callable[[Facts[Place], Move], Flow[None]] = self._settle_leased
        unknown, ends = None, float("inf")
        for pause in pauses():
            try:
                return (yield from settle(task, move))
            except (StoreUnavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    settle, unknown = self._settle_again, error
                ends = min(ends, time.monotonic() + PATIENCE)
                if time.monotonic() >= ends or not self._seat.outlasts(error):
                    raise unknown or error from error.__cause__
            yield from self._seat.pause(pause)

    def _settle_again(self, task: Facts[Place], move: Move) -> Flow[None]:
        """As _settle_leased, by a move that may have been made already: then it is as it should be."""
        try:
            yield from self._settle_leased(task, move)
        except NotTaken:
            record: Record | None = yield Call(lambda: self._get(task))
            if move.verb == "ack" and record is None:
                task.status = Status.DONE
            elif move.verb == "release" and record is not None and record.lease == move.lease:
                _told(task, record)
            else:  # the lease has ended, and the move was never made
                raise

    def _settle_now(self, moves: Sequence[Move]) -> list[Record | None]:
        """Guarded moves; of each the task afterwards, or None where the guard failed."""
        raise NotImplementedError

    def _get(self, id: TaskOrId) -> Record | None:
        """The task as it is stored now; None when it is not in the tube."""
        raise NotImplementedError

    def _move(
        self, verb: str, task: TaskOrId, extra: int = 0, reason: str | None = None, *, result: bytes | None = None,
        code: str | None = None,
    ) -> Move:  # fmt: skip
        session = self._seat.number
        if isinstance(task, Facts):
            record = self._own(task)
            lease = record.lease if record.state == "t" else None
            return Move(verb, record.id, session, lease, extra, reason, False, result, code, seen=record)
        return Move(verb, names.task_id(task), session, None, extra, reason, False, result, code)

    def _own(self, task: Facts[Place]) -> Record:
        if task._home is self:
            return task._record
        if task.tube != self.name:
            raise BadValue(f"task {task.id} is of tube {task.tube}, not {self.name}: settle it there")
        if task._home._stored.no != self._stored.no:
            raise NotTaken(f"task {task.id} was of an earlier tube {self.name}, which was dropped: forget it")
        return task._record

    def _settle_leased(self, task: TaskOrId, move: Move) -> Flow[None]:
        record: Record | None = (yield Moves(self, (move,)))[0]
        if record is None:
            raise self._not_taken(move)
        _told(task, record)

    def _not_taken(self, move: Move) -> NotTaken:
        return NotTaken(
            f"task {move.id} of tube {self.name} is not held by this session (any more), so it cannot "
            f"{move.verb} it: its lease lapsed, was settled, or is another's; drop the result"
        )

    def _free_move(self, verb: str, task: TaskOrId, reason: str | None) -> Move:
        if isinstance(task, Facts):
            record = self._own(task)
            lease = record.lease if task._leased else None
            return Move(verb, record.id, lease=lease, reason=reason, seen=record)
        return Move(verb, names.task_id(task), reason=reason)

    def _settle_any(self, verb: str, task: TaskOrId, reason: str | None = None) -> Flow[None]:
        move = self._free_move(verb, task, reason)
        after: Record | None = (yield Moves(self, (move,)))[0]
        if after is None and move.lease is not None:
            raise NotTaken(
                f"task {move.id} of tube {self.name} is not held any more: its lease is dead; peek before you {verb}"
            )
        if after is None:
            raise self._not_found(move.shown)
        _told(task, after)

    def _not_found(self, id: object) -> NotFound:
        return NotFound(f"task {id} is not in tube {self.name}: it was never put, or has left it")


def _told(task: TaskOrId, record: Record) -> None:
    if isinstance(task, Facts):
        task._after(record)
