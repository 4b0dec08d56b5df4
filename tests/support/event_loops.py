"""Helpers for tests of awaited verbs: one event loop per test, conditions to wait for, and counted store calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from penstock.aio import Broker, Tube

T = TypeVar("T")
PATIENCE = 60.0


def in_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a new event loop, with a time limit."""
    return asyncio.run(asyncio.wait_for(main(), 240))


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds; fail after that many seconds."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in other threads
            await asyncio.sleep(0.005)


async def blocked(broker: Broker, count: int, topic: str = "ready") -> None:
    """Wait until that many calls of this process are blocked on a topic of that sort."""
    room = broker.sync.runtime.wait_queue

    async def asleep() -> bool:
        with room._lock:
            waiters = {waiter for name, of in room.topics.items() if name[0] == topic for waiter in of}
            return sum(waiter._call is not None for waiter in waiters) == count

    await until(asleep)


async def at_rest(broker: Broker) -> None:
    """Wait until the store has answered every call, those of cancelled callers too."""

    async def quiet() -> bool:
        return broker.executor._pending_ops == 0

    await until(quiet)


async def counts(tube: Tube) -> dict[str, int]:
    """The counters of tasks that are not 0."""
    found = (await tube.stats()).tasks
    return {name: getattr(found, name) for name in found.__struct_fields__ if getattr(found, name)}


async def calls(tube: Tube) -> dict[str, int]:
    """The counters of calls that are not 0."""
    found = (await tube.stats()).calls
    return {name: getattr(found, name) for name in found.__struct_fields__ if getattr(found, name)}


def record_sizes(broker: Broker, verb: str) -> list[int]:
    """A list that gets the size of each call of this verb that the store receives from now on."""
    store: Any = broker.sync.runtime._store
    real, sizes = getattr(store, verb), list[int]()

    def call(*args: Any, **kwargs: Any) -> Any:
        sizes.append(args[1] if isinstance(args[1], int) else len(args[1]))
        return real(*args, **kwargs)

    setattr(store, verb, call)
    return sizes


def bridge_threads() -> int:
    """The number of executor threads in this process."""
    return sum(thread.name == "penstock-aio" for thread in threading.enumerate())


def held_back(broker: Broker, verb: str) -> tuple[asyncio.Event, threading.Event]:
    """Make the store hold back its answers to this verb until the second event is set."""
    store: Any = broker.sync.runtime._store
    real, loop = getattr(store, verb), asyncio.get_running_loop()
    made, proceed = asyncio.Event(), threading.Event()

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        loop.call_soon_threadsafe(made.set)
        assert proceed.wait(PATIENCE)
        return answer

    setattr(store, verb, call)
    return made, proceed


async def cancelled(call: asyncio.Future[Any]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
