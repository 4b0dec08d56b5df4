"""Accepts connections that speak the Redis protocol, and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time

from penstock.server.address import Address
from penstock.server.resp.connection import Connection
from penstock.server.resp.replies import RESP2, Fault, encode
from penstock.server.resp.service import Service

log = logging.getLogger("penstock")

MAX_CONNECTIONS = 10_000
# Between looks for requests that do not arrive.
SWEEP_SECONDS = 5.0
# Connections that the kernel holds until they are accepted.
BACKLOG = 1024


class RespListener:
    """All connections of one address."""

    def __init__(self, service: Service, address: Address, limit: int = MAX_CONNECTIONS) -> None:
        self._service = service
        self._limit = limit
        self._address = address
        self._ids = itertools.count(1)
        self._connections: set[Connection] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; where."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, sock=self._address.bind(), backlog=BACKLOG)
        self._sweeper = loop.create_task(self._sweep())
        return f"redis://{self._address.shown(self._server.sockets[0].getsockname()[1])}"

    async def stop(self, grace: float) -> None:
        """Accept no more, answer what was asked within the grace, and give back what the connections hold."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.end()
        await self._until_gone(grace)
        for connection in list(self._connections):
            connection.abort()
        await self._until_gone(grace)

    async def _until_gone(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections or self._settling:
                    self._moved.clear()
                    await self._moved.wait()

    def _connect(self) -> asyncio.Protocol:
        if len(self._connections) >= self._limit:
            return _TooMany()
        connection = Connection(self._service, next(self._ids), self._gone)
        self._connections.add(connection)
        return connection

    def _gone(self, connection: Connection) -> None:
        self._connections.discard(connection)
        settling = asyncio.get_running_loop().create_task(connection.settled())
        self._settling.add(settling)
        settling.add_done_callback(self._settled)

    def _settled(self, settling: asyncio.Task[None]) -> None:
        self._settling.discard(settling)
        self._moved.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for connection in list(self._connections):
                connection.cut_if_late(now)


class _TooMany(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(encode([Fault("ERR", "max number of clients reached")], RESP2))
        transport.close()
