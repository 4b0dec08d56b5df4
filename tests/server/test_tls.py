"""TLS on the Redis protocol's port, with a client that verifies the certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.server.certificates import self_signed
from tests.server.server_process import ONCE, Serve, read_to_end

PIPELINE = 2000
STALLED = 400


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path)


@pytest.fixture
def server(url: str, certificate: tuple[Path, Path]) -> Iterator[Serve]:
    cert, key = map(str, certificate)
    with Serve(url, "--resp", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key) as server:
        yield server
        assert server.stop() == (0, "")


def connected(server: Serve, certificate: Path) -> Any:
    url = f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={certificate}"
    return redis.Redis.from_url(url, single_connection_client=True, **ONCE)


def test_queues_and_tubes_by_rediss(server: Serve, certificate: tuple[Path, Path]) -> None:
    with connected(server, certificate[0]) as client, connected(server, certificate[0]) as other:
        pipeline = client.pipeline(transaction=False)
        for number in range(PIPELINE):
            pipeline.execute_command("MQ.PUSH", "jobs", b"%d " % number * 200)
        assert len(pipeline.execute()) == PIPELINE
        popped = client.execute_command("MQ.POP", PIPELINE, "jobs")
        assert [data for _, data in popped] == [b"%d " % number * 200 for number in range(PIPELINE)]
        client.execute_command("TUBE.CREATE", "mail", "fifo")
        client.execute_command("TUBE.PUT", "mail", "x")
        assert other.execute_command("TUBE.TAKE", "mail") == [1, b"t", b"x"]
        other.close()  # the connection was the session
        assert client.execute_command("TUBE.TAKE", "mail", "TIMEOUT", "20") == [1, b"t", b"x"]


def test_clients_without_tls_or_trust_in_the_certificate_are_not_served(
    server: Serve, certificate: tuple[Path, Path]
) -> None:
    for _ in range(3):
        plain = server.raw()
        plain.sendall(b"*3\r\n$7\r\nMQ.PUSH\r\n$4\r\njobs\r\n$1\r\nx\r\n")
        assert b"\r\n" not in read_to_end(plain)  # at most an alert of TLS
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        redis.Redis.from_url(f"rediss://127.0.0.1:{server.port}").ping()
    with connected(server, certificate[0]) as client:
        assert client.execute_command("TUBE.LIST") == []
        assert client.info("clients")["connected_clients"] == 1


def test_handshakes_that_stall_cost_little_memory(server: Serve, certificate: tuple[Path, Path]) -> None:
    with ExitStack() as opened:
        before = server.memory()
        for number in range(STALLED):
            stalled = opened.enter_context(server.raw())
            stalled.sendall(b"\x16\x03\x01\x00\xc4" * (number % 2))  # the beginning of a ClientHello, or nothing
        with connected(server, certificate[0]) as client:
            assert client.ping() is True
        assert server.memory() - before < STALLED * 150 * 1024


def test_a_key_without_a_certificate_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="--tls-key .* without a certificate: give --tls-cert as well"):
        Serve(url, "--resp", "127.0.0.1:0", "--tls-key", str(tmp_path / "key.pem"))
