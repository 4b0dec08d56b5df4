"""A worker: builds its parts, starts them, and stops them without losing tasks."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any

from penstock.app.app import App
from penstock.app.running import log_tasks
from penstock.app.schedules import declared
from penstock.broker.session import SessionHandle
from penstock.broker.tube import Tube, check_max_pri
from penstock.broker.tube_factory import find_tube, make_handle
from penstock.callbacks.tube_finder import Finder
from penstock.errors import BadValue, PenstockError, UnsupportedOption
from penstock.schedule.scheduler import Scheduler
from penstock.worker import settlement
from penstock.worker.async_executor import AsyncExecutor
from penstock.worker.fetcher import Fetcher, Source
from penstock.worker.lease_extender import LeaseExtender
from penstock.worker.memory_limit import MemoryLimit
from penstock.worker.process_executor import ProcessExecutor, importable_module
from penstock.worker.report import Reporter
from penstock.worker.settings import Settings
from penstock.worker.state import Executor, WorkerState
from penstock.worker.thread_executor import ThreadExecutor

log = logging.getLogger("penstock.worker")

# Seconds to settle finished tasks, at the end of the grace period or after a second signal.
LAST_SECONDS = 2.0
_TICK = 0.02


class Worker:
    """Runs the handlers of an app, in threads of this process, from `start` until `stop`."""

    def __init__(
        self, app: App, settings: Settings | None = None, hurry: threading.Event | None = None,
        callbacks: Callable[[WorkerState], Executor] | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings or Settings()
        self._callbacks = callbacks  # makes the executor for tasks that have a callback
        self._app = app
        self.state = WorkerState(self.settings, app.hooks)
        self._hurry = hurry or threading.Event()  # while it is set, a stop does not wait for handlers
        runtime = app.broker.runtime
        self.session_handle = SessionHandle(runtime, implicit=True)
        self.sources = self._find_sources()
        self._threads = ThreadExecutor(self.state)
        self._loop: AsyncExecutor | None = None
        self._executors: dict[str, Executor] = {"thread": self._threads, **self._make_executors()}
        turns = not self.settings.tubes
        self.fetcher = Fetcher(
            self.state, self.session_handle, self.sources, self._executors, app.handlers, turns=turns
        )
        self._scheduler = Scheduler(app.broker, declared(app.schedules), self.state.thread)
        self.state.on_ended = self._scheduler.ended
        self._lease_extender = LeaseExtender(self.state, self.session_handle, self._threads.wake)
        self.fetcher.on_taken = self._lease_extender.poke
        self.fetcher.on_suspect = self._lease_extender.check_soon
        self._memory = MemoryLimit(self.state, self.settings.max_memory) if self.settings.max_memory else None
        self._reporter = Reporter(self, app.broker.runtime)
        found = callbacks is not None and not self.settings.tubes
        self._finder = Finder(app.broker, self._follow, self.state.thread) if found else None

    def _find_sources(self) -> list[Source]:
        connection = self._app.connection
        used = dict.fromkeys([*(each.rules.tube for each in self._app.handlers.values()), *connection.tube_options])
        names = self.settings.tubes or tuple(used)
        if not names and self._callbacks is None:
            raise BadValue("the worker has no tubes: give an app that has tasks (module:app), --tubes or --callbacks")
        runtime = self._app.broker.runtime
        unknown = set(self.settings.tubes) - used.keys()
        for name in sorted(unknown - {tube.name for tube in runtime.store.load_tubes()}) if unknown else ():
            log.warning("tube %s is new, and no handler here uses it; check the name in --tubes", name)
        return [self._source(make_handle(runtime, self.session_handle, connection.tube(name).stored)) for name in names]

    def _source(self, tube: Tube, *, found: bool = False) -> Source:
        if not tube.stored.kind.leased:
            raise UnsupportedOption(
                f"tube {tube.name} is of kind {tube.kind}, which has no leases: workers need a leased kind"
            )
        if self.settings.limits:
            check_max_pri(tube.stored, 0)
        handlers = [each for each in self._app.handlers.values() if each.rules.tube == tube.name]
        needs = frozenset(handler.rules.executor for handler in handlers)
        if not handlers and self._callbacks is not None:
            needs = frozenset({"callback"})
        batch = max((handler.rules.batch or 0 for handler in handlers), default=0)
        return Source(tube, needs, found, batch or None)

    def _follow(self, names: list[str]) -> None:
        """Fetch from the tubes of the app, and from these, which have callbacks."""
        own = [source for source in self.sources if not source.found]
        others = set(names) - {source.tube.name for source in own}
        tubes = [find_tube(self._app.broker.runtime, self.session_handle, name) for name in sorted(others)]
        self.sources = own + [self._source(tube, found=True) for tube in tubes]
        self.fetcher.follow(self.sources)

    def _make_executors(self) -> dict[str, Executor]:
        """The executors that the handlers need, besides threads."""
        needs = {handler.rules.executor for handler in self._app.handlers.values()}
        made: dict[str, Executor] = {}
        if self._callbacks is not None:
            made["callback"] = self._callbacks(self.state)
        if "async" in needs or self._app.hooks.needs_loop:
            made["async"] = self._loop = AsyncExecutor(self.state)
        if "process" in needs:
            found = [each for each in self._app.handlers.values() if each.rules.executor == "process"]
            modules = {f"{importable_module(each.name, each.function)}:{each.function.__qualname__}" for each in found}
            modules |= self._app.hooks.modules
            made["process"] = ProcessExecutor(self.state, self.settings.processes, modules, self._app.connection.url)
        return made

    @cached_property
    def where(self) -> str:
        """The URL of the store, without passwords. Read once: the store may be unavailable later."""
        return self._app.broker.runtime.store.describe().where

    def ask_store(self) -> None:
        """Send a query to the store. Raises StoreError if it does not answer."""
        self._app.broker.runtime.store.overdue()

    @property
    def handler_names(self) -> list[str]:
        """The names of the app's handlers."""
        return sorted(self._app.handlers)

    def start(self) -> None:
        """Start taking and running tasks."""
        log_tasks()
        self._app.hooks.start_process(self._run_async)
        self._app.broker.runtime.start_background()
        self.state.settler.start()
        self._lease_extender.start()
        self.fetcher.start(self._threads)
        self._scheduler.start()
        for part in (self._finder, self._memory, self._reporter):
            if part is not None:
                part.start()

    def stop(self, grace: float | None = None) -> None:
        """Stop taking, release tasks that are not started, then wait up to `grace` seconds and release the rest."""
        grace = self.settings.grace if grace is None else grace
        ends = time.monotonic() + grace
        log.info("stopping: taking no more tasks; running ones have %g s", grace)
        self._scheduler.stop()
        for part in (self._finder, self._memory):
            if part is not None:
                part.stop()
        self.fetcher.stop()
        for item in self.state.in_flight.claim_all():
            self.state.settler.add(item, settlement.unstarted(item))
        slots = self.state.slots
        self._wait(lambda: not slots.running, ends)
        self._wait(lambda: not slots.running and not slots.waiting, ends)
        self._release_running()
        self._lease_extender.stop()
        left = 0 if self._hurry.is_set() else ends - time.monotonic()
        self.state.settler.stop(max(LAST_SECONDS, left))
        self._reporter.stop()
        try:
            self.session_handle.close()
        except PenstockError as error:  # its heartbeat stops, so others end it
            log.warning("could not close the session (%s); leaving it to lapse", error)
        self._app.hooks.stop_process(self._run_async)
        for executor in self._executors.values():
            if isinstance(executor, AsyncExecutor):
                executor.close()

    def _run_async(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a hook's coroutine on the event loop of the async handlers."""
        if self._loop is None:
            asyncio.run(coroutine)
        else:
            self._loop.run(coroutine)

    def _release_running(self) -> None:
        """Release the tasks that still run. Their handlers are stopped first if possible, so that none runs twice."""
        running = [item for item in list(self.state.in_flight.held) if not item.finished]
        for item in running:
            log.warning("%r did not end in time; releasing it", item, extra={"item": item})
            item.stopped = True
        for executor in self._executors.values():
            executor.stop()
        for item in running:
            self.state.settler.add(item, settlement.stopped(item))

    def _wait(self, condition: Callable[[], bool], ends: float) -> None:
        while not condition() and time.monotonic() < ends and not self._hurry.is_set():
            self._hurry.wait(_TICK)
