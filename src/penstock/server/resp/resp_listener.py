"""Accepts and closes connections of the Redis protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import time

from penstock.server.resp.client_connection import Connection
from penstock.server.resp.service import Service
from penstock.server.sockets import Address

log = logging.getLogger("penstock")

MAX_CONNECTIONS = 10_000
# Seconds between checks for slow requests.
SWEEP_SECONDS = 5.0
# Seconds for a TLS handshake.
HANDSHAKE_SECONDS = 10.0
# Connections that the kernel holds until they are accepted.
BACKLOG = 1024


class RespListener:
    """All connections of one address."""

    def __init__(
        self, service: Service, address: Address, limit: int = MAX_CONNECTIONS, tls: ssl.SSLContext | None = None
    ) -> None:
        self._service = service
        self._limit = limit
        self._tls = tls
        self._address = address
        self._ids = itertools.count(1)
        self._connections: set[Connection] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start listening. Returns the address."""
        loop = asyncio.get_running_loop()
        handshake = None if self._tls is None else HANDSHAKE_SECONDS
        self._server = await loop.create_server(
            self._connect, sock=self._address.bind(), backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=handshake
        )
        self._sweeper = loop.create_task(self._sweep())
        return f"{'redis' if self._tls is None else 'rediss'}://{self._address.shown(self._server.sockets[0].getsockname()[1])}"

    async def stop(self, grace: float) -> None:
        """Stop accepting, answer pending requests within the grace period, and release what connections hold."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.end()
        await self._wait_until_closed(grace)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_until_closed(grace)

    async def _wait_until_closed(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections or self._settling:
                    self._moved.clear()
                    await self._moved.wait()

    def _connect(self) -> asyncio.Protocol:
        return Connection(self._service, next(self._ids), self._made, self._gone)

    def _made(self, connection: Connection) -> None:
        # Counted only now: a TLS handshake that fails is not reported to anyone.
        self._connections.add(connection)
        if len(self._connections) > self._limit:
            connection.refuse("max number of clients reached")

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
