"""Limits on the memory a client uses and on the delay it causes for others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import penstock
from penstock.server.auth import Role, token_line
from penstock.server.paging import PAGE_BYTES
from tests.server.server_process import Serve

MEBIBYTE = 1024 * 1024
LARGE = b"x" * (MEBIBYTE - 100)


@pytest.fixture
def big(url: str) -> str:
    """A store with 60 tasks of a mebibyte in one tube, and 60 messages in another."""
    with penstock.connect(url) as broker:
        tube, queue = broker.tube("big", kind="fifo"), broker.tube("queue", kind="reliable")
        for _ in range(6):
            tube.put_many([LARGE] * 10)
            queue.put_many([LARGE] * 10)
    return url


def slowest_ping(server: Serve, work: Callable[[], object]) -> float:
    """The longest delay of another client's PING during the call."""
    client = server.client()
    client.ping()
    doing = threading.Thread(target=work)
    doing.start()
    slowest = 0.0
    while doing.is_alive():
        began = time.monotonic()
        client.ping()
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.01)
    doing.join()
    return slowest


def test_the_replies_of_exec_are_sent_one_by_one(tmp_path: Path, big: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(token_line(Role.READ, "reader"))
    file.chmod(0o600)
    commands = (b"TUBE.TASKS big LIMIT 1000\r\n", b"MQ.INSPECT queue 0 1000\r\n", b"TUBE.INSPECT queue 0 1000\r\n")
    requests = b"AUTH reader\r\nMULTI\r\n" + b"".join(commands) * 15 + b"EXEC\r\nPING done\r\n"
    with Serve(big, "--resp", "127.0.0.1:0", "--token-file", str(file)) as server:
        before = server.memory()
        connected = server.raw()
        connected.sendall(requests)
        peak, got, tail = before, 0, b""
        while not tail.endswith(b"$4\r\ndone\r\n"):
            some = connected.recv(MEBIBYTE)
            assert some
            got, tail = got + len(some), (tail + some)[-100:]
            peak = max(peak, server.memory())
        assert got > 45 * 7 * MEBIBYTE
        assert peak - before < 200 * MEBIBYTE
        assert server.stop() == (0, "")


def test_a_page_holds_a_bounded_number_of_bytes_and_is_continued(big: str) -> None:
    with Serve(big) as server:
        client = server.client()
        seen: list[int] = []
        while tasks := client.execute_command("TUBE.TASKS", "big", "LIMIT", 1000, "AFTER", seen[-1] if seen else 0):
            assert len(tasks) <= PAGE_BYTES // len(LARGE) + 1
            seen += [task[0] for task in tasks]
        assert seen == list(range(1, 61))
        listed: list[bytes] = []
        while part := client.execute_command("MQ.INSPECT", "queue", len(listed), 1000):
            listed += [id for id, _ in part]
        assert len(set(listed)) == len(listed) == 60
        last = client.execute_command("MQ.INSPECT", "queue", -60, 60)
        assert [id for id, _ in last] == listed[: len(last)]
        assert [id for id, _ in client.execute_command("MQ.INSPECT", "queue", -3, 100)] == listed[-3:]
        assert server.stop() == (0, "")


def test_takes_hand_out_fewer_tasks_when_they_are_large(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(url) as broker:
        broker.tube("big", kind="fifo", max_payload=100 * MEBIBYTE).put_many([LARGE] * 20)
        broker.tube("queue", kind="reliable", max_payload=100 * MEBIBYTE).put_many([LARGE] * 20)
    with Serve(url) as server:
        client = server.client()
        taken: list[int] = []
        while tasks := client.execute_command("TUBE.TAKE", "big", "COUNT", 50):
            assert len(tasks) < 12
            taken += [task[0] for task in tasks]
        assert taken == list(range(1, 21))
        popped: list[bytes] = []
        while messages := client.execute_command("MQ.POP", 50, "queue"):
            assert len(messages) < 12
            popped += [id for id, _ in messages]
        assert len(popped) == 20
        recovered = client.execute_command("MQ.RECOVER", "queue", 50, 0)
        assert [id for id, _ in recovered] == popped[: len(recovered)]
        assert 0 < len(recovered) < 12
        assert server.stop() == (0, "")


def test_a_pipeline_of_takes_gets_all(url: str) -> None:
    with penstock.connect(url) as broker:
        broker.tube("small", kind="fifo").put_many([b"x"] * 700)
        broker.tube("queue", kind="reliable").put_many([b"x"] * 700)
    with Serve(url) as server:
        client = server.client()
        for command in (("TUBE.TAKE", "small", "COUNT", 2), ("MQ.POP", 2, "queue")):
            pipeline = client.pipeline(transaction=False)
            for _ in range(400):
                pipeline.execute_command(*command)
            replies = pipeline.execute()
            assert [len(reply or ()) for reply in replies] == [2] * 350 + [0] * 50
        assert server.stop() == (0, "")


def test_large_lists_do_not_hold_up_other_clients(big: str) -> None:
    with Serve(big, "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0") as server:
        home = f"http://127.0.0.1:{server.http_port}"
        seen: list[int] = []

        def read() -> None:
            after = 0
            while after is not None:
                page = httpx.get(f"{home}/api/tubes/big/tasks?limit=1000&after={after}", timeout=60).json()
                seen.extend(task["id"] for task in page["tasks"])
                assert len(page["tasks"]) < 12
                after = page["after"]

        before = server.memory()
        assert slowest_ping(server, read) < 1.0
        assert seen == list(range(1, 61))
        assert slowest_ping(server, lambda: httpx.get(f"{home}/tubes/big?q=y", timeout=60)) < 1.0
        assert server.memory() - before < 250 * MEBIBYTE
        assert server.stop() == (0, "")


def test_reasons_and_errors_count_as_bytes_of_a_page(url: str) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("mail", max_payload=1000)
        for task in tube.put_many(range(900)):
            tube.bury(task.id, "r" * 10_000)
    with Serve(url) as server:
        client = server.client()
        first = client.execute_command("TUBE.TASKS", "mail", "LIMIT", 1000)
        assert 0 < len(first) < 900
        rest = client.execute_command("TUBE.TASKS", "mail", "LIMIT", 1000, "AFTER", first[-1][0])
        assert len(first) + len(rest) == 900
        assert server.stop() == (0, "")


@pytest.mark.parametrize("protocol", ["resp", "http"])
def test_connections_that_do_not_read_cost_a_bounded_amount_together(big: str, protocol: str) -> None:
    with Serve(big, "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0") as server:
        port = server.port if protocol == "resp" else server.http_port
        get = b"GET /api/tubes/big/tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        asked = b"TUBE.TASKS big LIMIT 1000\r\n" if protocol == "resp" else get
        client = server.client()
        with ExitStack() as opened:
            before, peak = server.memory(), 0
            for _ in range(60):
                stalled = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                stalled.sendall(asked)
                client.execute_command("TUBE.STATS", "big")  # behind it, in the store's thread
                peak = max(peak, server.memory())
            assert peak - before < 400 * MEBIBYTE
        code, stderr = server.stop()
        assert code == 0
        assert "too many unread reply bytes; disconnecting" in stderr
