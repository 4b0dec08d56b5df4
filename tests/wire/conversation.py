"""Connections without sockets: bytes in, bytes out, on a memory store with a stopped clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import penstock
from penstock.aio.executor import BatchExecutor
from penstock.server.auth import Tokens
from penstock.server.resp.client_connection import Connection
from penstock.server.resp.service import Service
from penstock.testing import Clock


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.closed


class Client:
    """One connection; `wire` has what the server has sent."""

    def __init__(self, service: Service) -> None:
        self.wire = Wire()
        self.connection = Connection(service, 1, lambda made: None, lambda gone: None)
        self.connection.connection_made(self.wire)

    def send(self, data: bytes) -> None:
        if not self.wire.closed:
            self.connection.data_received(data)

    async def replies(self) -> bytes:
        """Wait until all requests are answered. Returns the replies since the last call."""
        while (worker := self.connection._worker) is not None:
            await asyncio.wait([worker])
        written = bytes(self.wire.written)
        self.wire.written.clear()
        return written

    async def end(self) -> None:
        self.connection.connection_lost(None)
        await self.connection.settled()


@asynccontextmanager
async def serving(tokens: Tokens | None = None) -> AsyncIterator[Service]:
    """Yields the Service that connections share, on a new store."""
    executor = BatchExecutor()
    broker = penstock.connect(f"memory://{uuid4().hex}", clock=Clock())
    yield Service(broker, executor, tokens or Tokens())
    assert broker.check() == []
    await executor.close(broker.close)


async def converse(pieces: Sequence[bytes]) -> bytes:
    """Send these pieces on one connection. Returns the answer."""
    async with serving() as service:
        client = Client(service)
        for piece in pieces:
            client.send(piece)
            await asyncio.sleep(0)
        replies = await client.replies()
        await client.end()
        return replies
