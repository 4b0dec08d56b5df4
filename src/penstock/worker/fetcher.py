"""Fetches tasks: as many as can start now, and prefetches more if handlers are fast."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.broker.session import SessionHandle
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import open_tube
from penstock.core.task import Task, record_of, tube_of
from penstock.errors import NoSuchTube, PenstockError
from penstock.operations.operation import blocking
from penstock.worker import settlement
from penstock.worker.batches import Batcher
from penstock.worker.running_task import MAX_WAIT, RunningTask, read_call
from penstock.worker.state import Executor, WorkerState
from penstock.worker.thread_executor import ThreadExecutor

if TYPE_CHECKING:
    from penstock.app.app import AnyHandler

log = logging.getLogger("penstock.worker")

# The largest take: large enough to share a round trip or commit, small enough not to delay other users of the store.
LARGEST_TAKE = 1000
# The executor whose threads can swap roles with the fetching thread.
THREAD = "thread"
# Not an executor: the Batcher, where tasks of batch handlers wait for others.
BATCHES = "batches"
# The most tasks that wait to start: one extra take, so that handlers stay busy during the next take.
MOST_AHEAD = 2 * LARGEST_TAKE
# At most this many free slots are filled with one take, however fast handlers are.
AT_ONCE = 32
# The longest sleep while a taken task is being started.
HAND_OVER = 0.001
# Seconds between attempts while the store is unavailable.
FIRST_PAUSE = 0.05
LAST_PAUSE = 2.0
# Delay in seconds of a released task that has no callback, if this worker only runs callbacks: other workers take it.
NOT_OURS = 1.0
# Delay in seconds of a released task that still runs here under a lost lease: other workers take it.
STILL_RUNNING = 1.0


class Source(NamedTuple):
    """A tube to take from, and the executors of its handlers. A `found` tube is not created again after a drop."""

    tube: Tube
    needs: frozenset[str]
    found: bool = False
    batch: int | None = None  # the largest batch of its handlers


class Fetcher:
    """Takes tasks, in one thread at a time. Pauses while no slot is free, and blocks while nothing is ready.

    If a take returns a single task for the thread executor, the taking thread runs it and another thread continues.
    """

    def __init__(
        self, state: WorkerState, session_handle: SessionHandle, sources: Sequence[Source],
        executors: Mapping[str, Executor],
        handlers: Mapping[str, AnyHandler], *, turns: bool,
    ) -> None:  # fmt: skip
        self._state = state
        self.session_handle = session_handle
        self._take_tasks = blocking(session_handle.take_tasks)
        self._sources = list(sources)
        self._executors = executors
        self._handlers = handlers
        self._handled = {handler.rules.tube for handler in handlers.values()}
        self._wanted: deque[Sequence[Source]] = deque(maxlen=1)
        self._turns = turns  # True: tubes take turns; False: earlier tubes come first
        self._window = MAX_WAIT  # the shortest `patience` among the tasks of the last take
        self._room = threading.Event()
        self._restricted = False  # blocked in a take that must restart when more slots become free
        self._changed = False
        #: When the loop last ran, by the monotonic clock. A blocked take is woken every second.
        self.last_round = time.monotonic()
        self.stopping = False
        self._threads: ThreadExecutor | None = None  # its threads take turns at fetching
        self._ended = threading.Event()
        self.on_taken: Callable[[], None] = lambda: None
        #: Called when a take returns a task that this worker still runs.
        self.on_suspect: Callable[[], None] = lambda: None
        self._batcher = Batcher(state, self._start)
        state.run_again = self._run_again
        state.on_low = self.poke
        state.slots.on_free.append(self.poke)

    def start(self, threads: ThreadExecutor) -> None:
        """Start fetching in one of these threads."""
        self._threads = threads
        if any(source.batch is not None for source in self._sources):
            self._batcher.start()
        threads.run_in_new_thread(self._state.guarded("fetcher", self._feed))

    def stop(self) -> None:
        """Stop taking. When this returns, the tasks of the last take are in flight."""
        self.stopping = True
        self._room.set()
        self.session_handle.wake_blocked()
        self._ended.wait()
        self._batcher.stop()

    def follow(self, sources: Sequence[Source]) -> None:
        """Fetch from these tubes instead."""
        self._wanted.append(sources)
        self._room.set()
        self.session_handle.wake_blocked()

    def poke(self) -> None:
        """Check for free slots again."""
        self._room.set()
        if self._restricted:
            self._changed = True
            self.session_handle.wake_blocked()

    def _feed(self) -> None:
        passed_on = False
        try:
            passed_on = self._run()
        finally:
            if not passed_on:
                self._ended.set()

    def _continue(self) -> None:
        """Continue fetching for a thread that runs the task it took."""
        self._handed_out()
        self._feed()

    def _run(self) -> bool:
        """Take until stopped. Returns True if another thread continues."""
        pause = FIRST_PAUSE
        while not self.stopping:
            self.last_round = time.monotonic()
            self._room.clear()
            if self._wanted:
                self._sources = list(self._wanted.popleft())
            try:
                tasks = self._take()
                pause = FIRST_PAUSE
            except NoSuchTube as error:
                log.warning("tube was dropped (%s); opening it again", error)
                self._reopen()
                continue
            except PenstockError as error:
                log.warning("cannot take (%s); retrying", error)
                self._room.wait(pause)
                pause = min(pause * 2, LAST_PAUSE)
                continue
            if tasks and self._hand_out(tasks):
                return True
        return False

    def _take(self) -> list[Task]:
        """Take as many tasks as can start; if none can, return an empty list after a while."""
        self._changed = False
        self._restricted = True  # set before reading the free slots, so that no change is missed
        try:
            return self._take_what_fits()
        finally:
            self._restricted = False

    def _take_what_fits(self) -> list[Task]:
        count, max_pri = self._count()
        sizes: dict[int, list[Tube]] = {}
        for source in self._sources:
            size = self._size_of(source, count) if count > 0 else 0
            if size > 0:
                sizes.setdefault(size, []).append(source.tube)
        if not sizes:
            self._await_room()
            return []
        if len(sizes) > 1:  # first take from each tube what its executors have room for, then wait for any tube
            for size, tubes in sizes.items():
                tasks = self._take_tasks(tubes, size, 0, max_pri)
                if tasks:
                    return tasks
        tubes = [tube for some in sizes.values() for tube in some]
        if max_pri is None and len(tubes) == len(self._sources):
            self._restricted = self._changed = False
        return self._take_tasks(tubes, min(sizes), None, max_pri, self._over)

    def _reopen(self) -> None:
        """Open the tubes again. Drop those that were found and are gone, or were moved to another store."""
        sources: list[Source] = []
        gone: NoSuchTube | None = None
        for source in self._sources:
            if not source.found:
                try:
                    opened = open_tube(self.session_handle.runtime, self.session_handle, source.tube.name, None, {})
                except NoSuchTube as moved:
                    log.error("%s; no longer taking from it", moved)
                    gone = moved
                else:
                    sources.append(source._replace(tube=opened))
        if gone is not None and not sources:
            raise gone
        self._sources = sources

    def _over(self) -> bool:
        self.last_round = time.monotonic()
        return self.stopping or self._changed or bool(self._wanted)

    def _count(self) -> tuple[int, int | None]:
        """How many tasks to take, and up to which priority."""
        self._state.throughput.update(time.monotonic())
        if self._state.exhausted:
            return 0, None
        slots, buffered = self._state.slots, len(self._state.in_flight.unstarted) - self._batcher.waiting()
        if slots.limited:
            return slots.room(buffered)  # no prefetching: every task taken must be allowed to start
        ahead = self._ahead()
        # Not all free slots are filled with one take: an event loop starts coroutines one after the other.
        count = min(min(slots.free(), AT_ONCE) + ahead - buffered, LARGEST_TAKE)
        return (0 if buffered and count < ahead / 2 else count), None

    def _ahead(self) -> int:
        """How many tasks to prefetch: those that will start within half of `_window` at the current rate."""
        return min(MOST_AHEAD, int(self._state.throughput.rate * self._window / 2))

    def _size_of(self, source: Source, count: int) -> int:
        """How many tasks to take from a tube: as many as its executors can start; whole batches for batch handlers."""
        rooms = [self._executors[need].room() for need in source.needs]
        room = min((room for room in rooms if room is not None), default=None)
        if source.batch is None or self._state.exhausted:
            return count if room is None else min(count, room)
        free = min(self._state.slots.free(), AT_ONCE if room is None else room)
        return min(free * source.batch - self._batcher.waiting(source.tube.stored.no), LARGEST_TAKE)

    def _await_room(self) -> None:
        buffered = len(self._state.in_flight.unstarted)
        low = self._state.low = min(buffered - 1, self._ahead() // 2)
        if len(self._state.in_flight.unstarted) > low:
            self._room.wait(1.0)

    def _hand_out(self, tasks: Sequence[Task]) -> bool:
        """Dispatch tasks to executors. Returns True if this thread runs the task and another thread fetches."""
        now, session = time.monotonic(), self.session_handle.number
        state, in_flight = self._state, self._state.in_flight
        parts: dict[str, list[RunningTask]] = {}
        window = MAX_WAIT
        for task in tasks:
            item = RunningTask(task, cast(Tube, tube_of(task)), session, now)
            state.stats.taken += 1
            in_flight.held.add(item)  # before it can be settled, which removes it
            executor = self._route(item)
            if executor is None:
                continue
            window = min(window, item.patience)
            parts.setdefault(executor, []).append(item)
        self._window = window
        if not in_flight.unstarted:  # checked before dispatching: fast tasks finish before the next line runs
            state.throughput.begin(now)
        for items in parts.values():
            in_flight.add(items, now)
        if len(tasks) == 1 and THREAD in parts and self._handed_over(parts[THREAD][0]):
            return True
        for executor, items in parts.items():
            self._start(executor, items)
        self._let_start()
        self._handed_out()
        return False

    def _start(self, executor: str, items: Sequence[RunningTask]) -> None:
        if executor == BATCHES:
            self._batcher.add(items)
        else:
            self._executors[executor].start(items)

    def _run_again(self, batches: Sequence[RunningTask]) -> None:
        for batch in batches:
            assert batch.handler is not None
            self._executors[batch.handler.rules.executor].start([batch])

    def _handed_over(self, item: RunningTask) -> bool:
        return self._threads is not None and self._threads.hand_over(
            item, self._state.guarded("fetcher", self._continue)
        )

    def _handed_out(self) -> None:
        self.on_taken()
        if self._turns:
            self._sources.append(self._sources.pop(0))

    def _let_start(self) -> None:
        """Sleep until the last of a few tasks has started.

        Its thread needs the GIL, which this thread would otherwise hold until its next take is sent.
        """
        waiting = len(self._state.in_flight.unstarted)
        if 0 < waiting <= self._state.slots.free():
            self._state.low = 0
            if self._state.in_flight.unstarted:  # otherwise it has started already
                self._room.wait(HAND_OVER)

    def _route(self, item: RunningTask) -> str | None:
        """The executor for a task; None if the task was settled here."""
        if item.key in self._state.in_flight.running:  # an earlier lease was lost, but its handler still runs
            self._state.settler.add(item, settlement.postponed(item, STILL_RUNNING))
            self.on_suspect()
            return None
        if item.record.options.callback is not None:
            if "callback" in self._executors:
                return "callback"
        elif (data := read_call(item.task)) is not None:
            name = data.get("task")
            handler = self._handlers.get(name) if isinstance(name, str) else None
            if handler is not None:
                item.use(handler, self._state.slots, data)
                if item.used_up:
                    self._state.used_up(item)
                    return None
                if not is_duplicate_tick(item.task, data):
                    return handler.rules.executor if handler.rules.batch is None else BATCHES
                self._state.settler.add(item, settlement.dropped(item))
                return None
        if "callback" in self._executors and item.tube.name not in self._handled:
            self._state.settler.add(item, settlement.postponed(item, NOT_OURS))
            return None
        ended = settlement.unknown(item)
        log.warning("releasing %r: %s", item, ended.move.reason, extra={"item": item})
        self._state.settler.add(item, ended)
        return None


def is_duplicate_tick(task: Task, data: Mapping[str, object]) -> bool:
    """Whether the task is a tick that was put too late, so that another task may have run for the same time."""
    before = data.get("before")
    return isinstance(before, int) and record_of(task).created >= before
