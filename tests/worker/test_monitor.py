"""`penstock worker --listen`: health, metrics and tokens; and the limits after which a worker stops."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.app.app import App
from penstock.errors import StoreUnavailable
from penstock.server.auth import Role, make_token, token_line
from penstock.server.sockets import Address
from penstock.worker import monitor as monitoring
from penstock.worker.monitor import Monitor
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.support.threads import begin, until
from tests.support.worker_process import Program
from tests.worker import jobs
from tests.worker.conftest import Run, Start

LABELS = ("handler", "tube", "result")


@contextmanager
def served(worker: Worker) -> Iterator[str]:
    """The address of its monitor."""
    listener = Address("--listen", "127.0.0.1:0").bind()  # as the command does: not listening yet
    monitor = Monitor(worker, listener, None)
    monitor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        monitor.stop()


def get(url: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
    """Request a path. Returns the status and the body."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def samples(url: str) -> dict[tuple[str, ...], float]:
    """Values of the metrics, by name and label values."""
    status, text = get(f"{url}/metrics")
    assert status == 200
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name, *(sample.labels[each] for each in LABELS if each in sample.labels)): sample.value
        for sample in found
    }


def health(url: str, path: str = "health") -> tuple[int, dict[str, str]]:
    status, body = get(f"{url}/{path}")
    return status, json.loads(body)


def test_metrics_by_handler_and_tube(app: App, receive: Callable[[], object], send: Callable[[str], None]) -> None:
    worker = Worker(app, Settings(tubes=("default", "slow"), concurrency=4))
    worker.start()
    try:
        with served(worker) as url:
            jobs.echo.put(1)
            jobs.retry_until.put(2)
            lost, held = jobs.hold.put("a"), jobs.hold.put("b")
            receive(), receive()
            until(lambda: samples(url).get(("penstock_handler_results_total", "retry_until", "default", "done")) == 1)
            found = samples(url)
            assert found["penstock_handler_results_total", "retry_until", "default", "retried"] == 1
            assert found["penstock_handler_seconds_count", "retry_until", "default"] == 2
            assert found["penstock_handler_results_total", "echo", "default", "done"] == 1
            assert found["penstock_handler_in_flight", "hold", "slow"] == 2
            assert found["penstock_worker_slots",] == 4
            assert found["penstock_worker_stuck_threads",] == 0
            assert found["penstock_oldest_ready_seconds", "slow"] == 0
            assert found["process_resident_memory_bytes",] > 0
            lost.cancel()
            until(lambda: samples(url).get(("penstock_handler_results_total", "hold", "slow", "lost")) == 1)
            send("a")
            send("b")
            assert held.result(30) == "b"
            until(lambda: ("penstock_handler_in_flight", "hold", "slow") not in samples(url))
    finally:
        worker.stop(0)


def test_health_of_the_loop_and_of_the_store(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = run("default")
    with served(worker) as url:
        status, facts = health(url)
        assert (status, facts["status"], facts["store"]) == (200, "ok", "answers")
        monkeypatch.setattr(monitoring, "ROUND_SECONDS", -1.0)
        assert health(url, "live")[0] == health(url)[0] == 503
        monkeypatch.setattr(monitoring, "ROUND_SECONDS", 15.0)

        def away() -> None:
            raise StoreUnavailable("it is away")

        monkeypatch.setattr(worker, "ask_store", away)
        until(lambda: health(url)[0] == 503)  # an answer is cached for a second
        assert health(url)[1]["store"] == "it is away"
        assert health(url, "live")[0] == 200


def test_an_idle_fetch_loop_keeps_running(run: Run) -> None:
    worker = run("default")
    before = worker.fetcher.last_round
    until(lambda: worker.fetcher.last_round > before)


def test_a_store_that_hangs_is_reported_by_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, asked, back = run("default"), threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        back.wait(60)

    monkeypatch.setattr(worker, "ask_store", hang)
    monkeypatch.setattr(monitoring, "STORE_SECONDS", 0.1)
    with served(worker) as url:
        first = begin(lambda: get(f"{url}/health"))
        asked.wait(30)
        status, facts = health(url)
        assert (status, facts["store"]) == (503, "no answer for 0.1 s")
        back.set()
        assert first.result(30)[0] == 200


def test_connections_are_accepted_when_start_has_returned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    start_server, connected = asyncio.start_server, threading.Event()

    async def start_late(*args: Any, **options: Any) -> asyncio.Server:
        await asyncio.to_thread(connected.wait, 60)
        return await start_server(*args, **options)

    monkeypatch.setattr(asyncio, "start_server", start_late)
    with served(run("default")) as url:
        try:
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30).close()
        finally:
            connected.set()
            assert get(f"{url}/health")[0] == 200


def test_other_paths_and_malformed_requests_are_refused(run: Run) -> None:
    with served(run("default")) as url:
        assert get(f"{url}/")[0] == 404
        assert get(f"{url}/metrics", method="POST")[0] == 405
        assert get(f"{url}/health", method="HEAD") == (200, "")
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400")
        with socket.create_connection((host, int(port))):
            pass  # says nothing
        assert get(f"{url}/health")[0] == 200


def address(program: Program) -> str:
    program.await_log("health and metrics are at")
    match = re.search(r"are at (http://\S+)", program.log)
    assert match is not None
    return match[1]


def test_a_token_for_metrics_and_none_for_health(start: Start, tmp_path: Path) -> None:
    token = make_token()
    (tmp_path / "tokens").write_text(token_line(Role.READ, token))
    program = start("--listen", "0.0.0.0:0", "--token-file", str(tmp_path / "tokens"))
    url = address(program).replace("0.0.0.0", "127.0.0.1")
    assert get(f"{url}/metrics")[0] == get(f"{url}/metrics", "wrong")[0] == 401
    assert get(f"{url}/metrics", token)[0] == 200
    assert get(f"{url}/health")[0] == 200
    assert program.stop() == 0


@pytest.mark.parametrize("option", [("--max-tasks", "3"), ("--max-memory", "1M")])
def test_a_worker_that_reached_a_limit_exits_cleanly(app: App, url: str, option: tuple[str, str]) -> None:
    handles = [jobs.echo.put(number) for number in range(3)]
    with Program(url, "--tubes", "default", *option) as program:
        assert program.wait() == 0
    assert f"{option[0]} " in program.log
    if option[0] == "--max-tasks":
        assert [handle.result(0) for handle in handles] == [0, 1, 2]
    assert app.broker.tube("default").stats().tasks.taken == 0
