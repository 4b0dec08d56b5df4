"""The server stops while a handler runs: finished tasks are settled after it is back, and work continues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.app import App
from tests.servers import started
from tests.servers.redis import DurableRedis, Redis
from tests.support.threads import until
from tests.support.worker_process import PATIENCE, Program
from tests.worker import jobs

# However long the server is down, the session and its leases are there when it is back.
NO_LAPSE = "from penstock.store.redis import registry; registry.LAPSE_MS = 600_000"


@pytest.fixture
def server() -> Iterator[Redis]:
    """A server that the test may kill; every answered write survives, so that the test can be exact."""
    with started(DurableRedis) as server:
        yield server


@pytest.fixture
def url(server: Redis) -> str:
    return server.fresh_url()


def next_report(app: App) -> object:
    task = app.broker.tube("reported").take(PATIENCE)
    assert task is not None
    task.ack()
    return task.data


def test_a_result_is_settled_when_the_server_is_back(server: Redis, url: str, app: App, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    jobs.read_fifo.put(str(fifo))
    with Program(url, first=NO_LAPSE) as worker:
        assert next_report(app) == "reading"
        tube = app.broker.tube("slow")
        taken = tube.stats().calls.take
        server.kill()
        fifo.write_text("continue")
        worker.await_log("retrying to settle")
        server.start()
        until(lambda: tube.stats().tasks.done == 1, PATIENCE)
        assert (tube.stats().calls.take, tube.stats().calls.ack) == (taken, 1)
        jobs.noop.put(1)
        until(lambda: app.broker.tube("default").stats().tasks.done == 1, PATIENCE)
        assert worker.stop() == 0


def test_a_worker_that_cannot_settle_still_stops(server: Redis, url: str, app: App, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    jobs.read_fifo.put(str(fifo))
    with Program(url, "--grace", "0.5") as worker:
        assert next_report(app) == "reading"
        server.kill()
        fifo.write_text("continue")
        worker.await_log("retrying to settle")
        worker.signal()
        worker.await_log("which will run again")
        assert worker.wait() == 0
    server.start()
    tube = app.broker.tube("slow")
    until(lambda: tube.stats().tasks.ready == 1, 2 * PATIENCE)  # its session's heartbeat has lapsed
