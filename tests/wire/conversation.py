"""A connection without a socket: bytes in, bytes out, on a memory store whose clock stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import penstock
from penstock.bridge import Bridge
from penstock.server.auth import Tokens
from penstock.server.resp.connection import Connection
from penstock.server.resp.service import Service
from penstock.testing import Clock


class Wire(asyncio.Transport):
    """Keeps what is written."""

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

    def is_closing(self) -> bool:
        return self.closed


async def converse(pieces: Sequence[bytes], tokens: Tokens | None = None) -> tuple[bytes, bool]:
    """What is answered to these pieces, and whether the connection is closed in the end."""
    bridge = Bridge()
    clock = Clock()
    broker = penstock.connect(f"memory://{uuid4().hex}", clock=clock)
    ids = iter(range(1, 10))
    over = asyncio.Event()
    connection = Connection(Service(broker, bridge, tokens or Tokens()), next(ids), lambda gone: over.set())
    wire = Wire()
    connection.connection_made(wire)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
        await asyncio.sleep(0)
    while connection._worker is not None:
        await asyncio.wait([connection._worker])
    connection.connection_lost(None)
    await connection.settled()
    await bridge.close(broker.close)
    return bytes(wire.written), wire.closed
