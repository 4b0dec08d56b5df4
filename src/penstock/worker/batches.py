"""Batches: several tasks that one call of a batch handler runs, and that are settled individually."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.app.current import SIGNALS, CurrentTask, Failures
from penstock.errors import BadValue, NotFound
from penstock.worker.running_task import RunningTask

if TYPE_CHECKING:
    from penstock.app.app import AnyHandler
    from penstock.worker.state import WorkerState

GIVEN_A_BATCH = "this handler is given a batch: penstock.current_tasks() lists its tasks"
Dispatch = Callable[[str, Sequence[RunningTask]], None]


class Batch(RunningTask):
    """One call of a handler for several tasks. `alone`: for a single task that runs again because its batch failed."""

    __slots__ = ("alone", "members")

    def __init__(self, members: list[RunningTask], *, alone: bool = False) -> None:
        first = members[0]
        super().__init__(first.task, first.tube, first.session, time.monotonic())
        self.handler, self.slots = first.handler, first.slots
        self.ttr, self.deadline = first.ttr, first.deadline
        self.members = members
        self.alone = alone

    def __repr__(self) -> str:
        return super().__repr__() if len(self.members) == 1 else f"{len(self.members)} tasks with {super().__repr__()}"

    def start(self, members: list[RunningTask]) -> None:
        """Start the call with the remaining tasks; the others waited too long and were released."""
        self.members = members
        self.stored = [member.stored for member in members]
        for member in members:
            member.batch = self

    def lost_one(self) -> None:
        """Record that one task lost its lease. The call is stopped when all leases are lost."""
        if all(member.lost for member in self.members):
            self.lose(self.members[0].cause)

    def current_task(self) -> CurrentTask:
        """Raise: a batch handler has no single current task."""
        raise NotFound(GIVEN_A_BATCH)

    def current_tasks(self) -> list[CurrentTask]:
        """The tasks of this call, in the order of the handler's list argument."""
        return [member.current_task() for member in self.members]

    def results(self, result: object) -> list[object]:
        """The result of each task. Raises BadValue if the handler returned something else."""
        assert self.handler is not None
        return batch_results(self.handler.name, result, len(self.members))

    def errors(self, error: BaseException) -> list[BaseException | None] | None:
        """The error of each task, None where it succeeded; None if the error says nothing about single tasks."""
        count = len(self.members)
        if isinstance(error, Failures) and all(0 <= index < count for index in error.failures):
            return [error.failures.get(index) for index in range(count)]
        over = count == 1 or self.stuck or any(member.stopped for member in self.members)
        return [error] * count if over or isinstance(error, SIGNALS) else None

    def end(self) -> None:
        """Mark the call and its tasks as ended."""
        for member in self.members:
            member.batch = None


def batch_results(name: str, result: object, count: int) -> list[object]:
    """The result of each task of a batch. Raises BadValue if the handler returned something else."""
    if result is None:
        return [None] * count
    if not isinstance(result, list) or len(result) != count:
        shown = f"a list of {len(result)}" if isinstance(result, list) else type(result).__name__
        raise BadValue(f"{name} returned {shown} for {count} tasks: return a list with one result for each, or None")
    return result


class Batcher:
    """Collects tasks of batch handlers until a batch is full or its first task has waited for the handler's linger."""

    def __init__(self, state: WorkerState, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._waiting: dict[str, tuple[AnyHandler, deque[RunningTask], float]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._thread = state.thread("batcher", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop dispatching batches."""
        self._over = True
        self._wake.set()

    def waiting(self, tube: int | None = None) -> int:
        """The number of tasks that wait for their batch to fill, in all tubes or in one."""
        with self._lock:
            queues = [items for _, items, _ in self._waiting.values()]
            return sum(len(items) for items in queues if tube is None or (items and items[0].tube.stored.no == tube))

    def add(self, items: Sequence[RunningTask]) -> None:
        """Add taken tasks of batch handlers."""
        now = time.monotonic()
        with self._lock:
            for item in items:
                handler = item.handler
                assert handler is not None
                queue = self._waiting.get(handler.name)
                if queue is None:
                    queue = self._waiting[handler.name] = handler, deque(), now + handler.rules.linger
                queue[1].append(item)
        self._wake.set()
        self._flush(now)

    def _flush(self, now: float) -> float | None:
        """Dispatch batches that are full or have waited long enough. Returns the seconds until the next one is due."""
        ready: list[tuple[str, Batch]] = []
        with self._lock:
            for name, (handler, items, until) in list(self._waiting.items()):
                size = handler.rules.batch or 1
                while len(items) >= size or (items and until <= now):
                    some = [items.popleft() for _ in range(min(size, len(items)))]
                    ready.append((handler.rules.executor, Batch(some)))
                if not items:
                    del self._waiting[name]
            ends = [until for _, _, until in self._waiting.values()]
        for executor, batch in ready:
            self._dispatch(executor, [batch])
        return min(ends) - now if ends else None

    def _run(self) -> None:
        while not self._over:
            self._wake.clear()
            now = time.monotonic()
            left = self._flush(now)
            self._wake.wait(None if left is None else max(0.0, left))
