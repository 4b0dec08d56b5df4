"""The listener in this process: how many connections it accepts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

import penstock
from penstock.aio.executor import BatchExecutor
from penstock.server.auth import Tokens
from penstock.server.resp import resp_listener
from penstock.server.resp.resp_listener import RespListener
from penstock.server.resp.service import Service
from penstock.server.sockets import Address, Tls
from tests.server.certificates import self_signed


def test_a_connection_over_the_limit_gets_an_error() -> None:
    async def run() -> None:
        executor, broker = BatchExecutor(), penstock.connect(f"memory://{uuid4().hex}")
        listener = RespListener(Service(broker, executor, Tokens()), Address("--resp", "127.0.0.1:0"), limit=1)
        port = int((await listener.start()).rpartition(":")[2])
        first, first_out = await asyncio.open_connection("127.0.0.1", port)
        first_out.write(b"PING\r\n")
        assert await first.readline() == b"+PONG\r\n"
        second, second_out = await asyncio.open_connection("127.0.0.1", port)
        assert await second.read() == b"-ERR max number of clients reached\r\n"
        first_out.write(b"QUIT\r\n")
        assert await first.read() == b"+OK\r\n"
        third, third_out = await asyncio.open_connection("127.0.0.1", port)
        third_out.write(b"PING\r\n")
        assert await third.readline() == b"+PONG\r\n"
        await listener.stop(5)
        assert await third.read() == b""
        for out in (first_out, second_out, third_out):
            out.close()
        await executor.close(broker.close)

    asyncio.run(run())


def test_a_handshake_that_stalls_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp_listener, "HANDSHAKE_SECONDS", 0.3)

    async def run() -> None:
        executor, broker = BatchExecutor(), penstock.connect(f"memory://{uuid4().hex}")
        service, tls = Service(broker, executor, Tokens()), Tls(*self_signed(tmp_path)).context()
        listener = RespListener(service, Address("--resp", "127.0.0.1:0"), tls=tls)
        port = int((await listener.start()).rpartition(":")[2])
        stalled, out = await asyncio.open_connection("127.0.0.1", port)
        out.write(b"\x16\x03\x01")
        assert await stalled.read() == b""
        out.close()
        await listener.stop(5)
        await executor.close(broker.close)

    asyncio.run(run())
