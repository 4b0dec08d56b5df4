"""Brokers and sessions whose verbs are awaited. A new verb of the blocking ones is one line here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, wraps
from typing import ParamSpec

from penstock.aio.awaited import DRESS, Closing, Handle, Opening, awaited, whole
from penstock.aio.executor import BatchExecutor
from penstock.broker import broker, session

P = ParamSpec("P")

# Threads for a store behind a network, where calls on different tubes need not wait for each other. The others have
# one writer at a time, so a second thread would only wait.
REMOTE_THREADS = 4


class Session(Handle[session.Session], Closing):
    """Leases belong to it and end with it, as with `penstock.Session`."""

    @property
    def id(self) -> str:
        """The session's id, a UUID."""
        return self.sync.id

    tube = awaited(session.Session.tube)
    take = awaited(session.Session.take)
    close = awaited(session.Session.close)


class Broker(Handle[broker.Broker], Closing):
    """Opens tubes and sessions on one store, as `penstock.Broker`; it belongs to the event loop it was opened in."""

    def __init__(self, executor: BatchExecutor, sync: broker.Broker) -> None:
        super().__init__(executor, sync)
        self._closing: asyncio.Future[None] | None = None

    tube = awaited(broker.Broker.tube)
    create_tube = awaited(broker.Broker.create_tube)
    tubes = awaited(broker.Broker.tubes)
    take = awaited(broker.Broker.take)
    sessions = awaited(broker.Broker.sessions)
    check = awaited(broker.Broker.check)
    _session = awaited(broker.Broker.session)

    def session(self, ttr: float = 0, id: str | None = None) -> Opening[Session]:
        """As `penstock.Broker.session`: await it, or enter it by `async with`."""
        return Opening(partial(self._session, ttr, id))

    async def close(self) -> None:
        """Answer the calls that were made, then release what its sessions hold and let go of the store.

        Blocked takes give None. It goes on to the end, even if whoever waits for it is cancelled.
        """
        self.executor.check_loop()
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.executor.close(self.sync.close))
        await asyncio.shield(self._closing)


def _opening(connect: Callable[P, broker.Broker]) -> Callable[P, Opening[Broker]]:
    @wraps(connect)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[Broker]:
        return Opening(partial(_open, partial(connect, *args, **kwargs)))

    return call


async def _open(connect: Callable[[], broker.Broker]) -> Broker:
    executor = BatchExecutor()
    run = executor.run(whole(connect))
    try:
        opened = await run
    except BaseException:
        run.discard_result()
        executor.abandon()
        raise
    if opened.runtime.store.remote:
        executor.threads = REMOTE_THREADS
    return Broker(executor, opened)


#: Open a store as `penstock.connect` does: `async with connect(url) as broker`, or `broker = await connect(url)`.
connect = _opening(broker.connect)

DRESS[session.Session] = lambda handle, given: Session(handle.executor, given)
