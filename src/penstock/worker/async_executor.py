"""Runs async handlers on one event loop in a separate thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.app.current import set_run
from penstock.app.running import call_async
from penstock.errors import BadValue
from penstock.worker.running_task import RunningTask
from penstock.worker.settlement import TimedOut
from penstock.worker.state import WorkerState

log = logging.getLogger("penstock.worker")

# Seconds that cancelled coroutines have to clean up.
CLEAN_UP = 1.0


class TimeLimit:
    """Cancels a coroutine at its time limit, and again every second while it ignores the cancellation."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], limit: float) -> None:
        self.limit = limit
        self.passed = False
        self._loop, self._task = loop, task
        self._timer = loop.call_later(limit, self._cancel)

    def stop(self) -> None:
        """Stop the timer, because the coroutine has ended."""
        self._timer.cancel()

    def _cancel(self) -> None:
        self.passed = True
        self._task.cancel()
        self._timer = self._loop.call_later(CLEAN_UP, self._cancel)


class AsyncExecutor:
    """Executor for async handlers. Each running coroutine holds a slot; a lost lease cancels it."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._buffer: deque[RunningTask] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._called = False  # a call of _pump is scheduled
        self._blocked = False  # a handler blocks the event loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="penstock-loop", daemon=True)
        self._thread.start()
        state.slots.on_free.append(self.wake)

    def start(self, items: Sequence[RunningTask]) -> None:
        """Run these tasks in order, as slots become free."""
        self._buffer.extend(items)
        self.wake()

    def room(self) -> int | None:
        """Return None: only slots limit this executor."""
        return None

    def wake(self) -> None:
        """Start tasks in slots that became free; concurrent calls are merged into one."""
        if self._buffer and not self._called:
            self._called = True
            here = threading.current_thread() is self._thread  # then waking the loop needs no system call
            (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._pump)

    def stop(self) -> None:
        """Cancel the running coroutines and give them a short time to clean up."""
        self._buffer.clear()
        try:
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(2 * CLEAN_UP)
        except TimeoutError:
            log.warning("a handler blocks the event loop with a call that should be awaited; abandoning the loop")
            self._blocked = True

    def run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine of the app on the loop and wait for its end."""
        if self._blocked:
            coroutine.close()
            raise BadValue("the event loop is blocked by a handler")
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Close the event loop; call `stop` first."""
        if self._blocked:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _pump(self) -> None:
        self._called = False
        while self._buffer and self._state.slots.acquire():
            self._begin(self._buffer.popleft())

    def _begin(self, item: RunningTask) -> bool:
        """Start the task in its slot. Returns False if the task was already released."""
        if not self._state.claim(item):
            self._state.slots.release()
            return False
        running = self._loop.create_task(self._call(item))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return True

    async def _call(self, item: RunningTask) -> None:
        this = asyncio.current_task()
        assert this is not None
        item.cancel = lambda: self._loop.call_soon_threadsafe(this.cancel)
        if item.lost:
            this.cancel()
        set_run(item)
        began = time.perf_counter()
        limit = None if item.handler is None else item.handler.rules.time_limit
        timer = None if limit is None else TimeLimit(self._loop, this, limit)
        try:
            result = await self._run(item)
            if timer is not None and timer.passed:
                raise TimedOut(timer.limit)
        except BaseException as error:  # including CancelledError: by its own code, a lost lease, or a stop
            self._state.fail(item, TimedOut(timer.limit) if timer is not None and timer.passed else error, began)
        else:
            self._state.finish(item, result, began)
        finally:
            if timer is not None:
                timer.stop()
            self._state.slots.release()

    async def _run(self, item: RunningTask) -> object:
        """Run the handler. Returns its result."""
        assert item.handler is not None
        return await call_async(item.handler, item, item.stored, item.traced)

    async def _cancel_all(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLEAN_UP)
