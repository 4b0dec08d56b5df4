"""Malformed requests and slow clients: refused or throttled, without an effect on others."""

from __future__ import annotations

import pytest

import penstock
from tests.server.server_process import Serve, read_exactly, read_to_end


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"*2147483647\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*-5\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$2147483647\r\n", b"-ERR Protocol error: invalid bulk length: a request may have 67108864 bytes\r\n"),
        (b"*1\r\n$" + b"9" * 10_000, b"-ERR Protocol error: too big bulk count string\r\n"),
        (b"*1\r\n*1\r\n", b"-ERR Protocol error: expected '$', got '*'\r\n"),
        (b"x" * 70_000, b"-ERR Protocol error: too big inline request\r\n"),
        (b"*1\r\n$4\r\nPINGxx", b"-ERR Protocol error: expected CRLF after the bytes of an argument\r\n"),
        (b"PING\r\n*1\n", b"+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nTUBE.PUT t smuggled\r\n", b""),
        (b"POST / HTTP/1.1\r\nContent-Length: 21\r\n\r\nTUBE.PUT t smuggled\r\n", b""),
        (b"Host: localhost\r\nTUBE.PUT t smuggled\r\n", b""),
    ],
)
def test_a_bad_request_is_refused_and_its_connection_closed(server: Serve, sent: bytes, answer: bytes) -> None:
    with penstock.connect(server.url) as broker:
        tube = broker.create_tube("t", "fifo")
        with server.raw() as client:
            client.sendall(sent)
            assert read_to_end(client) == answer
        assert tube.stats().calls.put == 0
        assert server.client().ping() is True


def test_payload_bytes_are_never_run(server: Serve) -> None:
    client = server.client()
    client.execute_command("TUBE.CREATE", "t", "fifo")
    payload = b"\r\n*3\r\n$8\r\nTUBE.PUT\r\n$1\r\nt\r\n$5\r\nwrong\r\n"
    assert client.execute_command("TUBE.PUT", "t", payload) == 1
    assert client.execute_command("TUBE.TAKE", "t") == [1, b"t", payload]
    assert client.execute_command("TUBE.TAKE", "t") is None


def test_endless_pings_without_reading_are_throttled(server: Serve) -> None:
    client, other = server.raw(buffer=65_536), server.client()
    other.ping()
    before = server.memory()
    client.settimeout(1)
    sent = 0
    with pytest.raises(TimeoutError):  # the server stops reading when it and the sockets in between are full
        while sent < 100_000_000:
            sent += client.send(b"PING\r\n" * 10_000)
    assert server.memory() - before < 20 * 1024 * 1024
    assert other.ping() is True
    client.settimeout(20)
    whole = sent // 6
    read_exactly(client, b"+PONG\r\n" * whole)


def test_a_large_reply_that_nobody_reads_is_throttled(server: Serve) -> None:
    client, other = server.raw(), server.client()
    other.execute_command("MQ.PUSH", "big", *[b"x" * 100_000] * 100)
    before = server.memory()
    client.sendall(b"MQ.INSPECT big 0 100\r\n" * 50)
    for _ in range(5):
        assert other.ping() is True
    assert server.memory() - before < 120 * 1024 * 1024


def test_too_much_behind_a_take_that_waits_is_refused(server: Serve) -> None:
    other = server.client()
    other.execute_command("TUBE.CREATE", "t", "fifo")
    with server.raw() as client:
        client.sendall(b"TUBE.TAKE t TIMEOUT 60\r\n")
        with pytest.raises(OSError):  # noqa: PT011 - a reset or a broken pipe
            while True:
                client.sendall(b"PING\r\n" * 10_000)
    assert other.execute_command("TUBE.PUT", "t", "a") == 1
    assert other.execute_command("TUBE.TAKE", "t") == [1, b"t", b"a"]


def test_a_tube_refuses_data_over_its_limit_and_others_of_the_pipeline_are_stored(server: Serve) -> None:
    client = server.client()
    client.execute_command("TUBE.CREATE", "t", "fifo", "MAX_PAYLOAD", 10)
    pipeline = client.pipeline(transaction=False)
    for data in (b"a" * 10, b"b" * 11, b"c"):
        pipeline.execute_command("TUBE.PUT", "t", data)
    one, two, three = pipeline.execute(raise_on_error=False)
    assert (one, three) == (1, 2)
    assert str(two).startswith("PAYLOADTOOLARGE")
