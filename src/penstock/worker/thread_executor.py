"""Runs sync handlers in threads: as few as keep up, as many as there are slots."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.app.current import set_run
from penstock.app.running import call
from penstock.worker.running_task import RunningTask
from penstock.worker.state import WorkerState

# If handlers take longer than this, each thread wakes another for the next task before it runs its own. For faster
# handlers, waking a thread costs more than it gains.
WORTH_A_THREAD = 0.0002


class Parked:
    """An idle thread's wake-up lock, and the role that it plays first when woken."""

    __slots__ = ("lock", "role")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.role: Callable[[], None] | None = None


class ThreadExecutor:
    """Executor for sync handlers. A thread holds its slot from its first task until it finds no more tasks."""

    def __init__(self, state: WorkerState, most: int | None = None) -> None:
        self._state = state
        self._most = most  # maximum number of threads, without those that wait for other tasks; None: no limit
        self._threads = 0
        self._waiting = 0
        self._slots = state.slots
        self._buffer: deque[RunningTask] = deque()
        self._idle: list[Parked] = []
        self._lock = threading.Lock()
        self._over = False
        state.slots.on_free.append(self.wake)

    def start(self, items: Sequence[RunningTask]) -> None:
        """Run these tasks in order, as threads and slots become free."""
        self._buffer.extend(items)
        self.wake()

    def run_in_new_thread(self, role: Callable[[], None]) -> None:
        """Run a function in a new thread, which then runs handlers like the others."""
        with self._lock:
            self._threads += 1
        self._begin(role)

    def hand_over(self, item: RunningTask, role: Callable[[], None]) -> bool:
        """Give the caller's role to an idle thread, so that the caller can run the item without a thread switch.

        The caller, a thread of this executor, runs the item when it returns from its role. Returns False, without an
        effect, if no thread is idle.
        """
        with self._lock:
            if not self._idle or self._buffer or not self._slots.free():
                return False
            parked = self._idle.pop()
        self._buffer.append(item)
        parked.role = role
        parked.lock.release()
        return True

    def room(self) -> int | None:
        """How many more tasks the threads could start; None if only the slots limit it."""
        if self._most is None:
            return None
        with self._lock:
            return max(0, self._most - (self._threads - self._waiting - len(self._idle)) - len(self._buffer))

    def stop(self) -> None:
        """End the idle threads. A busy thread cannot be stopped; it ends when its handler returns."""
        self._over = True
        self._buffer.clear()
        with self._lock:
            while self._idle:
                self._idle.pop().lock.release()

    def wake(self) -> None:
        """Wake one more thread if there is work and a slot for it."""
        if not self._buffer or not self._slots.free():
            return
        with self._lock:
            if self._idle:
                self._idle.pop().lock.release()
                return
            if self._most is not None and self._threads - self._waiting >= self._most:
                return
            self._threads += 1
        self._begin(None)

    def _begin(self, role: Callable[[], None] | None) -> None:
        threading.Thread(target=self._run, args=(role,), name="penstock-runner", daemon=True).start()

    def _run(self, role: Callable[[], None] | None) -> None:
        parked = Parked()
        while True:
            if role is not None:
                role()
            if self._over:
                return
            holding = self._slots.acquire()
            if holding:
                holding = self._drain()
                set_run(None)
            with self._lock:
                self._idle.append(parked)
            if holding:
                self._slots.release()  # only now, so that its listeners find this thread idle
            else:
                self.wake()  # a slot may have become free since it was checked
            if not self._over:
                parked.lock.acquire()
            role, parked.role = parked.role, None

    def _drain(self) -> bool:
        """Run all waiting tasks. Returns False if the slot was given to another thread in the meantime."""
        buffer, throughput = self._buffer, self._state.throughput
        alone = True  # no other thread has been woken yet to take over if this thread's handler blocks
        while not self._slots.wanted:
            try:
                item = buffer.popleft()
            except IndexError:
                break
            if buffer and (alone or throughput.mean is None or throughput.mean > WORTH_A_THREAD):
                alone = False
                self.wake()
            if self._state.claim(item):
                self._call(item)
                if item.stuck:
                    return False
        return True

    def _call(self, item: RunningTask) -> None:
        handler = item.handler
        assert handler is not None
        set_run(item)
        if handler.rules.time_limit is not None:
            item.limit = time.monotonic() + handler.rules.time_limit
            self._state.in_flight.limited.add(item)
        began = time.perf_counter()
        try:
            result = call(handler, item, item.stored, item.traced)
        except BaseException as error:
            if self._state.returned(item):
                self._state.fail(item, error, began)
        else:
            if self._state.returned(item):
                self._state.finish(item, result, began)
