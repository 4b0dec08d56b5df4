"""What a connection may cost: time to send a request, and store calls."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from penstock.core.options import Tube
from penstock.server.auth import Role, Tokens, token_line
from penstock.server.resp.client_connection import ARRIVAL_SECONDS, STUCK_SECONDS, TOKEN_SECONDS
from penstock.server.resp.service import Service
from tests.wire.conversation import Client, serving

LATE = b"-ERR Protocol error: the request took too long to arrive\r\n"


def test_a_request_that_does_not_arrive_is_cut_off() -> None:
    async def run() -> None:
        async with serving() as service:
            idle, slow = Client(service), Client(service)
            slow.send(b"*1\r\n$4\r\nP")
            await slow.replies()
            for client in (idle, slow):
                client.connection.cut_if_late(client.connection._since + ARRIVAL_SECONDS - 1)
                assert not client.wire.closed
                client.connection.cut_if_late(client.connection._since + ARRIVAL_SECONDS + 1)
            assert (slow.wire.closed, await slow.replies()) == (True, LATE)
            assert not idle.wire.closed
            await slow.end()
            await idle.end()

    asyncio.run(run())


def test_bytes_that_trickle_in_do_not_extend_the_time() -> None:
    async def run() -> None:
        async with serving() as service:
            slow = Client(service)
            slow.send(b"*")
            slow.connection._since -= ARRIVAL_SECONDS
            for byte in b"1\r\n$4\r\nPI":
                slow.send(bytes([byte]))
                await slow.replies()
            slow.connection.cut_if_late(time.monotonic() + 1)
            assert await slow.replies() == LATE
            await slow.end()

    asyncio.run(run())


def test_the_time_limit_restarts_with_the_next_request() -> None:
    async def run() -> None:
        async with serving() as service:
            slow = Client(service)
            slow.send(b"*")
            slow.connection._since -= ARRIVAL_SECONDS
            slow.send(b"1\r\n$4\r\nPING\r\n*1\r\n")
            assert await slow.replies() == b"+PONG\r\n"
            slow.connection.cut_if_late(time.monotonic() + 1)
            assert not slow.wire.closed
            await slow.end()

    asyncio.run(run())


def test_a_client_that_sends_no_token_is_disconnected(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(token_line(Role.READ, "secret"))

    async def run() -> None:
        async with serving(Tokens(file)) as service:
            known, unknown = Client(service), Client(service)
            known.send(b"AUTH secret\r\n")
            unknown.send(b"PING\r\n")
            assert (await known.replies(), await unknown.replies()) == (
                b"+OK\r\n",
                b"-NOAUTH Authentication required.\r\n",
            )
            for client in (known, unknown):
                client.connection.cut_if_late(time.monotonic() + TOKEN_SECONDS + 1)
            assert (known.wire.closed, unknown.wire.closed) == (False, True)
            await known.end()
            await unknown.end()

    asyncio.run(run())


def test_a_peer_that_sends_and_does_not_read_is_cut_off_in_the_end() -> None:
    async def run() -> None:
        async with serving() as service:
            stuck = Client(service)
            stuck.connection.pause_writing()
            stuck.send(b"PING\r\n")
            await asyncio.sleep(0)
            stuck.send(b"PING\r\n" * 50_000)
            stuck.connection.cut_if_late(stuck.connection._stuck_since + STUCK_SECONDS - 1)
            assert not stuck.wire.closed
            stuck.connection.cut_if_late(stuck.connection._stuck_since + STUCK_SECONDS + 1)
            assert stuck.wire.closed
            await stuck.end()

    asyncio.run(run())


class Counter:
    """Counts how often a call of a real store is made, and with how many items."""

    def __init__(self, service: Service, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        call = getattr(service.runtime.store, name)

        def counted(tube: Tube, batch: list[object], **options: object) -> object:
            self.sizes.append(len(batch))
            return call(tube, batch, **options)

        monkeypatch.setattr(service.runtime.store, name, counted)


def test_calls_of_many_connections_share_store_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serving() as service:
            clients = [Client(service) for _ in range(50)]
            clients[0].send(b"MQ.PUSH k first\r\n")
            await clients[0].replies()
            puts = Counter(service, "put", monkeypatch)
            for number, client in enumerate(clients):
                client.send(b"MQ.PUSH k %d\r\n" % number)
            replies = [await client.replies() for client in clients]
            assert len({answer for answer in replies if answer.startswith(b"*1\r\n$")}) == 50
            assert sum(puts.sizes) == 50
            assert len(puts.sizes) <= 3
            for client in clients:
                await client.end()

    asyncio.run(run())


@pytest.mark.parametrize("verb", ["MQ.PUSH k x", "TUBE.PUT t x"])
def test_a_pipeline_of_puts_is_one_store_call(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    async def run() -> None:
        async with serving() as service:
            client = Client(service)
            client.send(b"TUBE.CREATE t fifo\r\nTUBE.PUT t first\r\nMQ.PUSH k first\r\n")
            await client.replies()
            puts = Counter(service, "put", monkeypatch)
            client.send((verb.encode() + b"\r\n") * 200)
            await client.replies()
            assert puts.sizes == [200]
            await client.end()

    asyncio.run(run())


def test_a_pipeline_of_acks_is_one_store_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serving() as service:
            client = Client(service)
            client.send(b"TUBE.CREATE t fifo\r\n" + b"TUBE.PUT t x\r\n" * 100 + b"TUBE.TAKE t COUNT 100\r\n")
            await client.replies()
            settles = Counter(service, "settle", monkeypatch)
            client.send(b"".join(b"TUBE.ACK t %d\r\n" % id for id in range(1, 102)))
            answers = (await client.replies()).split(b"\r\n")
            assert answers[:100] == [b"+OK"] * 100
            assert answers[100].startswith(b"-NOTTAKEN cannot ack task 101")
            assert settles.sizes == [101]
            await client.end()

    asyncio.run(run())
