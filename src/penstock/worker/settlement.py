"""How a task is settled after its handler ended: the move, and how long to hold the lease before making it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from penstock.app.current import Bury, Fail, Retry, Snooze, reason_of
from penstock.core import names
from penstock.core.backoff import Backoff
from penstock.core.ending import encode_code
from penstock.core.entry import encode_payload
from penstock.core.lifecycle import Move
from penstock.core.values import MAX_SECONDS, span_ms
from penstock.errors import PenstockError
from penstock.runtime.failures import failure_of

if TYPE_CHECKING:
    from penstock.app.hooks import Hooks
    from penstock.worker.running_task import RunningTask

DEFAULT_BACKOFF = Backoff()


class Settlement(msgspec.Struct, frozen=True):
    """A move and its counter. `hold`, for kinds without delays: seconds to keep the lease before settling.

    `if_held`: the task has probably been settled already, in the handler's own transaction.
    """

    move: Move
    what: str  # done, failed, retried, buried, released: for the counters
    hold: float = 0
    if_held: bool = False


def done(item: RunningTask, result: object) -> Settlement:
    """Ack, because the handler returned."""
    record = item.record
    payload = None
    try:
        kept = result if item.handler is None or result is None else item.handler.store_result(result)
        if kept is not None:
            payload = encode_payload(item.tube.stored, "result", kept)
    except Exception as error:  # the handler succeeded: a retry would not help
        return _with_failure(bury(item, unencodable(error)), error, unencodable(error))
    return Settlement(Move("ack", record.id, item.session, record.lease, result=payload, seen=record), "done")


def uncommitted(item: RunningTask) -> Settlement:
    """Release the task if its handler acked it in an open transaction, and then did not commit that."""
    error = HandlerFailed("the transaction that acked it was not committed")
    return msgspec.structs.replace(failed(item, error), if_held=True)


def unencodable(error: Exception) -> str:
    """The reason for burying a task whose result cannot be encoded. Encoding may run user code, which may raise."""
    return f"its result cannot be kept: {error if isinstance(error, PenstockError) else names.failure(error)}"


def failed(item: RunningTask, error: BaseException) -> Settlement:
    """Release, bury or fail, because the handler raised.

    Every settlement after an exception is made here. All but a Snooze are added to the errors of the task.
    """
    match error:
        case Snooze():
            return postponed(item, error.delay)
        case Bury():
            reason = reason_of(error)
            settled = bury(item, reason)
        case Fail():
            reason, settled = error.error, _fail(item, error)
        case Retry():
            delay = _backoff(item) if error.delay is None else error.delay
            reason = reason_of(error)
            settled = release(item, delay, reason)
        case _:
            reason = error.args[0] if isinstance(error, HandlerFailed) else names.failure(error)
            settled = release(item, _backoff(item), reason)
    return _with_failure(settled, error, reason or type(error).__name__)


def _with_failure(settled: Settlement, error: BaseException, text: str) -> Settlement:
    """The settlement with the error that is stored for this attempt."""
    move = msgspec.structs.replace(settled.move, failure=failure_of(error, text))
    return msgspec.structs.replace(settled, move=move)


class HandlerFailed(Exception):
    """A failed run, described by text: an error in a child process, or an exceeded limit.

    `remote_traceback` is the traceback in the child process, if there was one.
    """

    remote_traceback = ""


class TimedOut(HandlerFailed, TimeoutError):
    """A run took longer than its handler's time limit."""

    def __init__(self, limit: float) -> None:
        super().__init__(f"timed out after {limit:g} s")


def _fail(item: RunningTask, error: Fail) -> Settlement:
    record = item.record
    code = encode_code(error.code)
    move = Move("fail", record.id, item.session, record.lease, reason=error.error, code=code, seen=record)
    return Settlement(move, "failed")


def bury(item: RunningTask, reason: str | None) -> Settlement:
    """Bury the task."""
    record = item.record
    why = names.text("reason", reason)
    return Settlement(Move("bury", record.id, lease=record.lease, reason=why, seen=record), "buried")


def release(item: RunningTask, delay: float, reason: str | None) -> Settlement:
    """Release the task for another attempt after the delay; its last attempt buries it."""
    record = item.record
    timed = "delay" in item.tube.stored.kind.accepts
    extra = span_ms("delay", min(delay, MAX_SECONDS)) if timed else 0
    move = Move(
        "release", record.id, item.session, record.lease, extra, names.text("reason", reason), seen=record,
        max_attempts=item.max_attempts,
    )  # fmt: skip
    last = record.attempts >= item.max_attempts
    return Settlement(move, "retried", 0 if timed or last else delay)


def unknown(item: RunningTask) -> Settlement:
    """Release a task whose handler this worker does not have; another worker may have it."""
    return release(item, _backoff(item), f"the worker that took it has no handler named {_name(item)}")


def unstarted(item: RunningTask) -> Settlement:
    """Release a task that was never started; the attempt is not counted."""
    record = item.record
    return Settlement(Move("release", record.id, item.session, record.lease, unstarted=True, seen=record), "released")


def postponed(item: RunningTask, seconds: float) -> Settlement:
    """Release a task that cannot run here now, with a delay; the attempt is not counted."""
    move = msgspec.structs.replace(release(item, seconds, None).move, unstarted=True, max_attempts=None)
    return Settlement(move, "released", 0 if move.extra else seconds)


def used_up(item: RunningTask) -> Settlement:
    """Bury a task whose worker died in its last attempt."""
    record = item.record
    move = Move(
        "release", record.id, item.session, record.lease, unstarted=True, seen=record, max_attempts=item.max_attempts
    )
    return Settlement(move, "buried")


def stopped(item: RunningTask) -> Settlement:
    """Release a task whose handler did not end before the worker stopped."""
    record = item.record
    reason = "the worker stopped before the handler ended"
    move = Move(
        "release", record.id, item.session, record.lease, reason=reason, seen=record, max_attempts=item.max_attempts
    )
    return Settlement(move, "released")


def dropped(item: RunningTask) -> Settlement:
    """Delete a duplicate tick of a schedule."""
    record = item.record
    return Settlement(Move("delete", record.id, lease=record.lease), "dropped")


def call_hooks(hooks: Hooks, item: RunningTask, ended: Settlement, error: BaseException | None) -> None:
    """Call the hooks for a task that is about to be buried, or released for another attempt."""
    if ended.what not in ("buried", "retried"):
        return
    why = HandlerFailed(ended.move.reason) if error is None else error
    last = ended.what == "buried" or item.record.attempts >= item.max_attempts
    (hooks.buries if last else hooks.retries)(item.task, why)


def _backoff(item: RunningTask) -> float:
    chosen = item.handler.rules.backoff if item.handler is not None else None
    chosen = chosen or item.tube.stored.backoff or DEFAULT_BACKOFF
    return chosen.delay(item.task.attempts, random.random())


def _name(item: RunningTask) -> str:
    data = item.task.data
    return names.shown(data.get("task")) if isinstance(data, dict) else "(its data names none)"
