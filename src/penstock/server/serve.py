"""Starts the listeners on one broker, waits for a signal, and stops them in order. Knows no protocol."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import ctypes
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol

import penstock
from penstock.aio.executor import BatchExecutor
from penstock.aio.handles import REMOTE_THREADS
from penstock.broker.broker import Broker

log = logging.getLogger("penstock")

# Seconds to answer pending requests after a signal.
GRACE_SECONDS = 5.0


class Listener(Protocol):
    """Serves the broker at one address, in the server's event loop."""

    async def start(self) -> str:
        """Start listening. Returns the URL."""

    async def stop(self, grace: float) -> None:
        """Accept no more requests, finish pending ones within the grace period, and release everything."""


Mount = Callable[[Broker, BatchExecutor], Listener]


async def serve(url: str, mounts: Sequence[Mount], ready: Callable[[list[str]], object]) -> None:
    """Serve a store until SIGTERM or SIGINT. `ready` is called with the addresses once all listeners are up."""
    raise_file_limit()
    return_freed_memory()
    shrink_tls_buffers()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    async with opened(url) as (broker, executor):
        listeners = [mount(broker, executor) for mount in mounts]
        try:
            ready([await listener.start() for listener in listeners])
            await stop.wait()
        finally:
            await asyncio.gather(*(listener.stop(GRACE_SECONDS) for listener in listeners))


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Broker, BatchExecutor]]:
    """Open a broker and its executor for the block, and close them afterwards."""
    executor = BatchExecutor()
    try:
        broker = await executor.call(partial(penstock.connect, url))
    except BaseException:
        executor.abandon()
        raise
    if broker.runtime.store.remote:
        executor.threads = REMOTE_THREADS
    broker.runtime.start_background()
    try:
        yield broker, executor
    finally:
        await executor.close(broker.close)


def raise_file_limit() -> None:
    """Raise the limit of open files, because every connection needs one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_M_MMAP_THRESHOLD = -3


def return_freed_memory() -> None:
    """Have glibc return large blocks to the system at once.

    Otherwise, large replies to many connections leave a heap four times as large as its content.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1024 * 1024)


def shrink_tls_buffers() -> None:
    """Give each TLS connection a read buffer of one TLS record, 16 KiB.

    asyncio's 256 KiB are filled before the handshake, and clients without a token can open thousands of connections.
    Each takes 67 KiB with this buffer, and 311 with asyncio's.
    """
    asyncio.sslproto.SSLProtocol.max_size = 16 * 1024
