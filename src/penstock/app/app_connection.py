"""An application's connection to its store, opened on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.broker.broker import Broker, connect
from penstock.broker.tube import Tube
from penstock.core.names import shown
from penstock.errors import BadValue
from penstock.system.forks import reset_in_child

if TYPE_CHECKING:
    import asyncio

    from penstock.aio.executor import BatchExecutor


class AppConnection:
    """One broker, and the tubes that were opened with it."""

    def __init__(self, url: str | None) -> None:
        if url is not None and not isinstance(url, str):
            raise BadValue(f"store URL {shown(url)} is not a str: give one such as sqlite:///jobs.db")
        self.url = url
        self._lock = threading.Lock()
        self._broker: Broker | None = None
        self._tubes: dict[str, Tube] = {}
        self._executors: dict[asyncio.AbstractEventLoop, BatchExecutor] = {}
        #: Tubes that workers take from besides those of handlers: name -> arguments of broker.tube.
        self.tube_options: Mapping[str, Mapping[str, Any]] = {}
        #: Runs stored tasks immediately, without a worker; set by penstock.testing.eager.
        self.eager: Callable[[], None] | None = None
        reset_in_child(self)

    @property
    def broker(self) -> Broker:
        """The broker; the first use connects."""
        with self._lock:
            if self._broker is None:
                self._broker = connect(self.url)
            return self._broker

    def opened(self, name: str) -> Tube | None:
        """An already opened tube, or None."""
        return self._tubes.get(name)

    def tube(self, name: str) -> Tube:
        """A tube, created when it is missing."""
        tube = self._tubes.get(name)
        if tube is None:
            tube = self._tubes[name] = self.broker.tube(name, **self.tube_options.get(name, {}))
        return tube

    def executor(self) -> BatchExecutor:
        """The executor that runs awaited verbs for the running event loop; it ends with the loop or this connection."""
        import asyncio  # here, because most programs have no event loop

        from penstock.aio.executor import BatchExecutor
        from penstock.aio.handles import REMOTE_THREADS

        loop = asyncio.get_running_loop()
        executor = self._executors.get(loop)
        if executor is None:
            with self._lock:  # threads of other event loops may be here, too
                closed = [self._executors.pop(other) for other in list(self._executors) if other.is_closed()]
                executor = self._executors[loop] = BatchExecutor()
            for other in closed:
                other.abandon()
        if self._broker is not None and self._broker.runtime.store.remote:
            executor.threads = REMOTE_THREADS
        return executor

    @contextmanager
    def replaced(self, broker: Broker, run: Callable[[], None]) -> Iterator[None]:
        """Use another broker inside the block, without closing it afterwards; `run` runs what was put."""
        before = self._broker, self._tubes
        self._broker, self._tubes, self.eager = broker, {}, run
        try:
            yield
        finally:
            self._broker, self._tubes, self.eager = *before, None

    def forget_tubes(self) -> None:
        """Forget all opened tubes, because one was dropped; the next use opens them again."""
        self._tubes.clear()

    def use(self, url: str | None) -> None:
        """Use another store from now on."""
        if url != self.url:
            self.close()
            self.url = url

    def close(self) -> None:
        """Close the store; the next use connects again."""
        with self._lock:
            broker, self._broker = self._broker, None
            self._tubes.clear()
            executors, self._executors = self._executors, {}
        for executor in executors.values():
            executor.abandon()
        if broker is not None:
            broker.close()

    def after_fork(self) -> None:
        """In a forked child, replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()
        self._executors = {}
