"""Taken tasks in a worker: one with its handler, and the set of all in flight."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.app.arguments import stored_arguments
from penstock.app.current import CurrentTask
from penstock.app.handler import DEFAULT_ATTEMPTS
from penstock.app.tracing import is_traced
from penstock.broker.tube import Tube
from penstock.core import codec
from penstock.core.options import Tube as StoredTube
from penstock.core.task import Record, Task, record_of
from penstock.core.values import positive_ms
from penstock.errors import BadValue

if TYPE_CHECKING:
    from penstock.app.app import AnyHandler
    from penstock.worker.batches import Batch
    from penstock.worker.slots import Slots

# A taken task that does not start within this time, or this share of its ttr, is released for other workers.
MAX_WAIT = 0.1
WAIT_SHARE = 0.25
# The same for a task of a batch handler, after its linger, so that batches are not split.
BATCH_WAIT = 0.5


class RunningTask:
    """A taken task with its handler. `deadline` is the end of its lease by the monotonic clock, None if it has no end.

    It is the `Run` behind `penstock.current_task()` and `penstock.waiting()`.
    """

    __slots__ = (
        "batch", "cancel", "cause", "current", "deadline", "ended", "ends", "finished", "handler",
        "limit", "lost", "max_attempts", "new_ttr", "record", "session", "slots", "stopped", "stored",
        "stored_progress", "stuck", "task", "traced", "ttr", "tube", "waiting",
    )  # fmt: skip

    def __init__(self, task: Task, tube: Tube, session: int, now: float) -> None:
        #: The task as the take returned it.
        self.record = record = record_of(task)
        self.task = task
        self.tube = tube
        self.session = session
        self.ttr = None if record.at is None or record.taken is None else (record.at - record.taken) / 1000
        self.deadline = None if self.ttr is None else now + self.ttr
        self.ends: float | None = None  # the lease is not extended beyond this time
        self.handler: AnyHandler | None = None
        self.stored: object = None  # its arguments
        self.traced: dict[str, object] | None = None  # its data, if it carries a trace context
        self.slots: Slots | None = None
        self.max_attempts = record.options.max_attempts or DEFAULT_ATTEMPTS
        self.new_ttr = False  # True until the lease is extended to the handler's ttr
        self.limit: float | None = None  # when its handler must have ended, by the monotonic clock
        self.batch: Batch | None = None  # the batch that runs it
        self.waiting = False  # its handler waits for other tasks, without a slot
        self.ended = False  # its handler has returned, or was abandoned
        self.stuck = False  # its handler exceeded its time limit: lease and slot were given up
        self.lost = False
        self.cause = ""  # how its lease was lost
        self.finished = False  # its settlement is queued or being stored
        self.stopped = False  # the worker is stopping and has stopped its handler
        self.current: CurrentTask | None = None
        self.stored_progress: float | None = None  # the progress that the store knows
        self.cancel: Callable[[], object] | None = None

    def __repr__(self) -> str:
        unknown = "unknown" if self.record.options.callback is None else "callback"
        name = unknown if self.handler is None else self.handler.name
        return f"{name} {self.task.id} of {self.tube.name}"

    def use(self, handler: AnyHandler, slots: Slots | None, data: Mapping[str, object]) -> None:
        """Set the handler; its options apply where the put has none."""
        self.handler, self.slots = handler, slots
        self.stored = stored_arguments(data)
        self.traced = dict(data) if is_traced(data) else None
        record, tube, options = self.record, self.tube.stored, handler.rules.options
        most = options.get("max_attempts")
        if most is not None and record.options.max_attempts in (None, tube.max_attempts):
            self.max_attempts = most
        elif record.options.max_attempts is None:
            self.max_attempts = tube.max_attempts or DEFAULT_ATTEMPTS
        if (ttr := options.get("ttr")) is not None and "ttr" in tube.kind.accepts and has_default_ttr(record, tube):
            wanted = positive_ms("ttr", ttr) / 1000
            if wanted != self.ttr:
                self.ttr, self.new_ttr = wanted, True

    @property
    def used_up(self) -> bool:
        """Whether all attempts were used up before this one, because the worker died in the last attempt."""
        return self.record.attempts > self.max_attempts

    @property
    def key(self) -> tuple[int, int]:
        """The numbers of the tube and the task."""
        return self.tube.stored.no, self.record.id

    @property
    def patience(self) -> float:
        """The seconds that the task may wait in the worker before it starts."""
        if self.handler is not None and self.handler.rules.batch is not None:
            return self.handler.rules.linger + BATCH_WAIT
        return MAX_WAIT if self.ttr is None else min(MAX_WAIT, self.ttr * WAIT_SHARE)

    @property
    def progress(self) -> float | None:
        """The progress that the handler last reported."""
        return None if self.current is None else self.current.progress

    @property
    def settled(self) -> bool:
        """Whether the handler has settled the task itself."""
        return self.current is not None and self.current.status is not self.task.status

    @property
    def unsure(self) -> bool:
        """Whether the handler acked the task in a transaction that it may have rolled back."""
        return self.settled and self.current is not None and self.current.unsure

    def unsettle(self) -> None:
        """Settle the task again, because its handler raised after an ack that the caller may have rolled back."""
        if self.current is not None and self.current.unsure:
            self.current.status = self.task.status

    def lose(self, cause: str) -> None:
        """Mark the lease as lost: notify the handler, and stop it if possible."""
        self.cause, self.lost = cause, True
        if self.current is not None:
            self.current.cause, self.current.lost = cause, True
        if self.cancel is not None:
            self.cancel()
        if self.batch is not None:
            self.batch.lost_one()

    # used by the handler, through penstock.current_task() and penstock.waiting()

    def current_task(self) -> CurrentTask:
        """The task for the handler."""
        if self.current is None:
            self.current = CurrentTask(self.record, self.tube, self.task.data)
            self.current.cause, self.current.lost = self.cause, self.lost
        return self.current

    def current_tasks(self) -> list[CurrentTask]:
        """The current task as a list of one."""
        return [self.current_task()]

    def give_up_slot(self, *, awaited: bool = False) -> None:
        """Free the slot while the handler waits for other tasks."""
        if self.handler is not None and self.handler.rules.executor == "async" and not awaited:
            raise BadValue("penstock.waiting() would block the loop here: in an async handler use `async with`")
        if self.slots is None:
            return
        with self.slots.switch:
            if self.stuck:  # it has no slot any more
                return
            self.waiting = True
        self.slots.give_up_slot()

    def regain_slot(self) -> None:
        """Wait for a slot, then continue."""
        if self.slots is None or not self.waiting:
            return
        granted = threading.Event()
        self.slots.regain_slot(granted.set)
        granted.wait()
        with self.slots.switch:
            self.waiting, surplus = False, self.stuck
        if surplus:  # its time limit passed while it waited
            self.slots.release()

    async def regain_slot_async(self) -> None:
        """Async version of `regain_slot`. A cancelled handler also waits for a slot, because it will release one."""
        if self.slots is None or not self.waiting:
            return
        loop, granted = asyncio.get_running_loop(), asyncio.Event()
        self.slots.regain_slot(lambda: loop.call_soon_threadsafe(granted.set))
        cancelled: asyncio.CancelledError | None = None
        while not granted.is_set():
            try:
                await granted.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        self.waiting = False
        if cancelled is not None:
            raise cancelled


def read_call(task: Task) -> dict[str, object] | None:
    """The call that a task describes, as a dict or as JSON bytes; None if it describes no call."""
    data = task.data
    if isinstance(data, bytes):
        try:
            task.data = data = codec.decode(data)
        except BadValue:
            return None
    return data if isinstance(data, dict) else None


def has_default_ttr(record: Record, tube: StoredTube) -> bool:
    """Whether the put gave no ttr, so that the task has the tube's, its ttl, or none."""
    if record.ttr is None or record.ttr in (tube.ttr, tube.ttl):
        return True
    return tube.ttr is None and record.expires is not None and record.expires - record.created == record.ttr


class InFlight:
    """The taken tasks that are not settled. An unstarted one can be claimed once, to run or to release it."""

    def __init__(self) -> None:
        self.held: set[RunningTask] = set()
        # item -> until when it may wait to start. Removing an item claims it, atomically without a lock.
        self.unstarted: dict[RunningTask, float] = {}
        #: Tasks whose handlers run, by tube and id; includes tasks with a lost lease, but not stuck ones.
        self.running: dict[tuple[int, int], RunningTask] = {}
        #: Runs in threads that have a time limit.
        self.limited: set[RunningTask] = set()

    def add(self, items: Iterable[RunningTask], now: float) -> None:
        """Add tasks that were just taken."""
        for item in items:
            self.held.add(item)
            self.unstarted[item] = now + item.patience

    def claim(self, item: RunningTask) -> bool:
        """Claim a task. Returns whether the caller may start or release it."""
        return self.unstarted.pop(item, None) is not None

    def claim_all(self) -> list[RunningTask]:
        """Claim all tasks that are not started, to be released."""
        return [item for item in list(self.unstarted) if self.claim(item)]

    def claim_overdue(self, now: float) -> list[RunningTask]:
        """Claim the tasks that have waited too long, to be released."""
        overdue = [item for item, until in list(self.unstarted.items()) if until <= now]
        return [item for item in overdue if self.claim(item)]
