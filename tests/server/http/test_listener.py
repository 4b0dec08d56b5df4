"""The listener: how it handles connections, and how it stops."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

import penstock
from penstock.server.http import http_listener
from penstock.server.sockets import Address, Tls
from tests.server.certificates import self_signed
from tests.server.http.server_thread import PATIENCE, serving
from tests.server.http.test_tasks import MAIL
from tests.support.inspection import waiters
from tests.support.threads import until


@pytest.fixture
def store_url() -> str:
    return "memory://listener"


def test_answers_do_not_wait_for_more_to_send() -> None:
    with Address("--http", "127.0.0.1:0").bind() as bound:
        assert bound.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY for these alone


def test_a_server_that_stops_ends_waiting_calls(store_url: str) -> None:
    with penstock.connect(store_url) as broker, ThreadPoolExecutor(2) as pool:
        tube = broker.tube("mail")
        with serving(store_url) as running:
            with httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
                waiting = pool.submit(client.post, f"{MAIL}/take", json={"timeout": 60})
                until(lambda: waiters(broker, "mail") == 1)
                running.in_loop(running.app.stop)
                answer = waiting.result(PATIENCE)
            assert (answer.status_code, answer.json()["error"]) == (503, "ServiceUnavailable")
        tube.put(1)
        assert tube.peek(1).attempts == 0
        assert broker.sessions() == []


def test_what_the_server_held_is_ready_when_it_has_ended(store_url: str) -> None:
    with penstock.connect(store_url) as broker:
        tube = broker.tube("mail")
        tube.put(1)
        before = threading.active_count()
        with serving(store_url) as running:
            running.post(f"{MAIL}/take")
            assert tube.peek(1).status == "t"
        assert tube.peek(1).status == "r"
        until(lambda: threading.active_count() <= before)


def test_connections_over_the_limit_are_refused(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_CONNECTIONS", 2)
    body = b'{"status":"ok"}'
    with serving(store_url) as running:
        address = ("127.0.0.1", httpx.URL(running.url).port or 0)

        def answer(client: socket.socket) -> bytes:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            read = b""
            with suppress(ConnectionResetError):  # after a refusal
                while not read.endswith(body) and (more := client.recv(2000)):
                    read += more
            return read

        def answer_of_another() -> bytes:
            with socket.create_connection(address, PATIENCE) as client:
                return answer(client)

        with socket.create_connection(address, PATIENCE) as one, socket.create_connection(address, PATIENCE) as two:
            for held in (one, two):
                assert answer(held).endswith(body)
            assert answer_of_another().startswith(b"HTTP/1.1 503")
            assert answer(two).endswith(body)
        until(lambda: answer_of_another().endswith(body))


def test_a_handshake_that_stalls_is_cut(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "HANDSHAKE_SECONDS", 0.3)
    certificate, key = self_signed(tmp_path)
    with serving(store_url, tls=Tls(certificate, key)) as running:
        port = httpx.URL(running.url).port
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stalled:
            stalled.sendall(b"\x16\x03\x01")
            assert stalled.recv(100) == b""
        assert running.get("/health").status_code == 200
