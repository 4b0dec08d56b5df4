"""What all connections share: the broker, cached tubes, tokens and counters. Knows no commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from penstock.aio.awaited import whole
from penstock.aio.executor import BatchExecutor
from penstock.broker.broker import Broker
from penstock.broker.session import SessionHandle
from penstock.core.options import Tube as StoredTube
from penstock.engine.store import load_tube
from penstock.operations.operation import Operation
from penstock.server.auth import Tokens
from penstock.server.paging import MAX_LARGE_READS
from penstock.server.sockets import Unread

P = ParamSpec("P")
R = TypeVar("R")

# The most tubes that are cached; beyond that, the cache is emptied.
MAX_TUBES = 10_000


class Service:
    """One broker for many connections; concurrent calls share store calls through its executor."""

    def __init__(self, broker: Broker, executor: BatchExecutor, tokens: Tokens) -> None:
        self.runtime = broker.runtime
        #: The session for kind reliable, whose messages belong to no session.
        self.session_handle: SessionHandle = broker.session_handle
        self.broker = broker
        self.executor = executor
        self.tokens = tokens
        self.unread = Unread()
        #: Held from reading data until it is encoded, so that only few large results are in memory.
        self.large_reads = asyncio.Semaphore(MAX_LARGE_READS)
        self.began = time.time()
        self.connections = 0
        self.blocked = 0
        self.accepted = 0
        self.commands = 0
        self._tubes: dict[str, StoredTube] = {}

    async def ask(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a verb in a thread. If the caller is cancelled, tasks that it took are released."""
        return await self.run(operation_of(verb, *args, **kwargs))

    async def run(self, operation: Operation[R]) -> R:
        """Run an operation; like `ask`."""
        run = self.executor.run(operation)
        try:
            return await run
        except asyncio.CancelledError:
            run.discard_result()
            raise

    async def find(self, name: str, *, refresh: bool) -> StoredTube | None:
        """The stored tube of that name, from the cache unless `refresh`."""
        known = None if refresh else self._tubes.get(name)
        if known is not None:
            return known
        if len(self._tubes) >= MAX_TUBES:
            self._tubes.clear()
        self._tubes.pop(name, None)
        found = await self.ask(load_tube, self.runtime.store, name)
        if found is not None:
            self._tubes[name] = found
        return found


def operation_of(verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Operation[R]:
    """The operation of a handle's verb; a plain blocking call is an operation of one step."""
    operation: Callable[..., Operation[R]] | None = getattr(verb, "operation", None)
    if operation is None:
        return whole(verb, *args, **kwargs)
    handle: Any = verb.__self__  # type: ignore[attr-defined]
    return partial(operation, handle)(*args, **kwargs)
