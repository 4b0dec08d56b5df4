"""What the parts of a worker share: the tasks in flight, the slots, the settler and the counters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.app.current import SIGNALS
from penstock.app.hooks import Hooks, OnEnd
from penstock.core import names
from penstock.errors import BadValue
from penstock.runtime.failures import handler_frames
from penstock.worker import settlement
from penstock.worker.batches import Batch
from penstock.worker.running_task import InFlight, RunningTask
from penstock.worker.settings import Settings
from penstock.worker.settler import Settler
from penstock.worker.slots import Slots
from penstock.worker.worker_stats import Throughput, WorkerStats

log = logging.getLogger("penstock.worker")


class Executor(Protocol):
    """Runs handlers. For each task it is given, the settler gets a Settlement, unless another part claims the task."""

    def start(self, items: Sequence[RunningTask]) -> None:
        """Run these tasks as slots become free. Called from one thread only."""

    def room(self) -> int | None:
        """The number of tasks that it could start now, besides those it has; None if only the slots limit it."""

    def stop(self) -> None:
        """Stop running handlers, if possible."""


class WorkerState:
    """The state of one worker, shared by its threads."""

    def __init__(self, settings: Settings, hooks: Hooks | None = None) -> None:
        self.hooks = hooks or Hooks()
        #: Called with each finished run, for the scheduler's record of ticks.
        self.on_ended: OnEnd | None = None
        self.in_flight = InFlight()
        self.stats = WorkerStats()
        self.slots = Slots(settings.concurrency, settings.limits)
        self._concurrency = settings.concurrency
        self._tasks_left = settings.max_tasks
        self.settler = Settler(self.in_flight, self.stats, self.thread)
        self.throughput = Throughput()
        #: Runs batches whose tasks are already claimed.
        self.run_again: Callable[[Sequence[RunningTask]], None] = lambda batches: None
        #: Called when a thread of the worker itself has crashed.
        self.on_crash: Callable[[], object] = lambda: None
        #: Called when the worker has reached a limit (`max_tasks`, `max_memory`) and is to stop.
        self.on_limit: Callable[[], object] = lambda: None
        #: When at most this many tasks wait to be started, `on_low` is called, once.
        self.low = -1
        self.on_low: Callable[[], None] = lambda: None

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Make a thread of the worker itself that reports a crash."""
        return threading.Thread(target=self.guarded(name, run), name=f"penstock-{name}", daemon=True)

    def guarded(self, name: str, run: Callable[[], None]) -> Callable[[], None]:
        """Wrap a thread's function: the other threads are useless without this one, so report it if it crashes."""

        def guarded() -> None:
            try:
                run()
            except BaseException:
                log.critical("worker thread %s crashed; shutting down", name, exc_info=True)
                self.on_crash()

        return guarded

    def claim(self, item: RunningTask) -> bool:
        """Whether the caller, which holds a slot, may run the task now."""
        if isinstance(item, Batch):
            return self._claim_batch(item)
        if not self.in_flight.claim(item):
            return False  # released, because it waited too long to start
        self._poke_if_low()
        if self.slots.limited and not self.slots.may_start(item.task.pri):
            self.settler.add(item, settlement.unstarted(item))
            return False
        self.in_flight.running[item.key] = item
        if self.hooks.start:
            self.hooks.starts(item.task)
        return True

    def _poke_if_low(self) -> None:
        if len(self.in_flight.unstarted) <= self.low:
            self.low = -1
            self.on_low()

    def _claim_batch(self, batch: Batch) -> bool:
        members = batch.members if batch.alone else [member for member in batch.members if self.in_flight.claim(member)]
        self._poke_if_low()
        if self.slots.limited and members and not self.slots.may_start(members[0].task.pri):
            for member in members:
                self.settler.add(member, settlement.unstarted(member))
            return False
        for member in members:
            if member.lost:
                self.in_flight.running.pop(member.key, None)
                self.settler.forget(member)
        batch.start([member for member in members if not member.finished])
        for member in batch.members:
            self.in_flight.running[member.key] = member
            if self.hooks.start and not batch.alone:
                self.hooks.starts(member.task)
        return bool(batch.members)

    def _finish_batch(self, batch: Batch, result: object, began: float) -> None:
        try:
            results = batch.results(result)
        except BadValue as error:
            return self._fail_batch(batch, error, began)
        batch.end()
        for member, each in zip(batch.members, results, strict=True):
            self.finish(member, each, began)
        return None

    def _fail_batch(self, batch: Batch, error: BaseException, began: float) -> None:
        """Settle each task by its error. If the error does not tell which tasks failed, run each alone, once more."""
        batch.end()
        errors = batch.errors(error)
        if errors is None:
            log.warning("%r failed as a batch (%s); running its tasks one by one", batch, names.failure(error))
            for member in batch.members:
                if member.settled:
                    self.finish(member, None, began)
            return self.run_again([Batch([member], alone=True) for member in batch.members if not member.settled])
        for member, each in zip(batch.members, errors, strict=True):
            if each is None:
                self.finish(member, None, began)
            else:
                self.fail(member, each, began)
        return None

    def finish(self, item: RunningTask, result: object, began: float) -> None:
        """Settle a task whose handler returned."""
        if isinstance(item, Batch):
            return self._finish_batch(item, result, began)
        self._ended(item, None, time.perf_counter() - began)
        if item.lost:
            return self.settler.forget(item)
        if item.unsure:
            return self.settler.add(item, settlement.uncommitted(item))
        ended = settlement.done(item, result)
        settlement.call_hooks(self.hooks, item, ended, None)
        return self.settler.add(item, ended)

    def fail(self, item: RunningTask, error: BaseException, began: float) -> None:
        """Settle a task whose handler raised or could not be called."""
        item.unsettle()
        if isinstance(item, Batch):
            return self._fail_batch(item, error, began)
        self._ended(item, error, time.perf_counter() - began)
        if item.lost:
            return self.settler.forget(item)
        ended = settlement.stopped(item) if item.stopped else settlement.failed(item, error)
        if not isinstance(error, SIGNALS) and not item.stopped:
            log.warning(
                "%r failed in attempt %d: %s", item, item.task.attempts, ended.move.reason,
                exc_info=_in_handler(error), extra={"item": item},
            )  # fmt: skip
        settlement.call_hooks(self.hooks, item, ended, error)
        return self.settler.add(item, ended)

    def release_unstarted(self, item: RunningTask) -> None:
        """Release a claimed task that could not be started."""
        self.in_flight.running.pop(item.key, None)
        self.settler.add(item, settlement.stopped(item) if item.stopped else settlement.unstarted(item))

    def used_up(self, item: RunningTask) -> None:
        """Bury a task whose worker died in its last attempt."""
        log.warning("burying %r: its attempts are used up", item, extra={"item": item})
        ended = settlement.used_up(item)
        settlement.call_hooks(self.hooks, item, ended, settlement.HandlerFailed("its attempts are used up"))
        self.settler.add(item, ended)

    def returned(self, item: RunningTask) -> bool:
        """Record that a handler returned. Returns False if its time limit had passed: lease and slot were given up."""
        if item.limit is None:
            return True
        self.in_flight.limited.discard(item)
        with self.slots.switch:
            item.ended = True
            if item.stuck:
                self.stats.stuck -= 1
        return not item.stuck

    def give_up(self, item: RunningTask, limit: float) -> None:
        """Release the task of a thread that exceeded its time limit and cannot be stopped, and free its slot."""
        with self.slots.switch:
            self.in_flight.limited.discard(item)
            if item.ended or item.stuck:
                return
            item.stuck = True
            self.stats.stuck += 1
            has_slot = not item.waiting
        log.error(
            "%r timed out after %g s and its thread is stuck (%d of %d); continuing in another thread",
            item, limit, self.stats.stuck, self._concurrency, extra={"item": item},
        )  # fmt: skip
        self.fail(item, settlement.TimedOut(limit), time.perf_counter() - limit)
        if self.exhausted:
            log.critical("all %d threads are stuck; shutting down", self._concurrency)
            self.on_crash()
        if has_slot:
            self.slots.release()

    def reached_limit(self, why: str) -> None:
        """Stop as after a signal, so that a supervisor starts a new worker."""
        log.info("%s; stopping", why)
        self.on_limit()

    @property
    def exhausted(self) -> bool:
        """Whether as many threads are stuck as handlers may run at once, so that the process must be replaced."""
        return self.stats.stuck >= self._concurrency

    def _ended(self, item: RunningTask, error: BaseException | None, seconds: float) -> None:
        item.ended = True
        self.in_flight.running.pop(item.key, None)
        self.throughput.note(seconds)
        self.stats.ran(item, error, seconds)
        if self._tasks_left is not None:
            self._tasks_left -= 1
            if self._tasks_left == 0:
                self.reached_limit("--max-tasks is reached")
        if self.hooks.end:
            self.hooks.ended(item.task, error, seconds)
        if self.on_ended is not None:
            self.on_ended(item.task, error, seconds)


def _in_handler(error: BaseException) -> BaseException | None:
    """The error with a traceback that starts in the handler; None if the traceback has no frame of the handler."""
    frames = handler_frames(error)
    return None if frames is None else error.with_traceback(frames)
