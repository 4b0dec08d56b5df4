"""What all connections of a server share: the store, the tubes found in it, tokens and counters. Knows no commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from penstock.aio.awaited import whole
from penstock.aio.executor import Bridge
from penstock.broker.broker import Broker
from penstock.broker.session_handle import Seat
from penstock.core.options import Tube as StoredTube
from penstock.operations.operation import Flow
from penstock.server.auth import Tokens
from penstock.store.contract import load_tube

P = ParamSpec("P")
R = TypeVar("R")

# Tubes are remembered until so many names are known; then all are forgotten and found again.
MAX_TUBES = 10_000


class Service:
    """One broker for many connections; calls that wait at the same moment share store calls by its bridge."""

    def __init__(self, broker: Broker, bridge: Bridge, tokens: Tokens) -> None:
        self.hub = broker._hub
        #: The session of what belongs to nobody: messages of kind reliable.
        self.seat: Seat = broker._seat
        self.broker = broker
        self.bridge = bridge
        self.tokens = tokens
        self.began = time.time()
        self.connections = 0
        self.blocked = 0
        self.accepted = 0
        self.commands = 0
        self._tubes: dict[str, StoredTube] = {}

    async def ask(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a verb gives, without blocking the loop. A caller that is cancelled meanwhile has taken nothing."""
        run = self.bridge.run(flow_of(verb, *args, **kwargs))
        try:
            return await run
        except asyncio.CancelledError:
            run.forsake()
            raise

    async def find(self, name: str, *, anew: bool) -> StoredTube | None:
        """The stored tube of that name, as it was last seen unless it is to be looked for anew."""
        known = None if anew else self._tubes.get(name)
        if known is not None:
            return known
        if len(self._tubes) >= MAX_TUBES:
            self._tubes.clear()
        self._tubes.pop(name, None)
        found = await self.ask(load_tube, self.hub.store, name)
        if found is not None:
            self._tubes[name] = found
        return found


def flow_of(verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
    """A verb of a handle as a flow; a plain blocking call is a flow of one step."""
    flow: Callable[..., Flow[R]] | None = getattr(verb, "flow", None)
    if flow is None:
        return whole(verb, *args, **kwargs)
    handle: Any = verb.__self__  # type: ignore[attr-defined]
    return partial(flow, handle)(*args, **kwargs)
