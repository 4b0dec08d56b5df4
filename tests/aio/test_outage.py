"""A server that stops while coroutines are blocked on it, and starts again."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterator

import pytest

from penstock import aio
from penstock.aio.handles import REMOTE_THREADS
from tests.servers import running
from tests.servers.base import Server
from tests.support.event_loops import blocked, in_loop, until


@pytest.fixture
def server() -> Iterator[Server]:
    """A private server, which the test may stop and start."""
    own = type(running("redis"))()
    yield own
    own.stop()


def test_blocked_takes_outlast_a_restart_of_their_server(server: Server, caplog: pytest.LogCaptureFixture) -> None:

    async def main() -> None:
        async with aio.connect(server.fresh_url()) as broker:
            tube = await broker.tube("t")
            takes = [asyncio.ensure_future(tube.take()) for _ in range(100)]
            await blocked(broker, 100)
            await asyncio.to_thread(server._end, signal.SIGTERM)

            async def noticed() -> bool:
                return any("blocked calls resume when it returns" in record.getMessage() for record in caplog.records)

            await until(noticed)
            await asyncio.to_thread(server.start)
            await tube.put_many(range(100))
            found = await asyncio.gather(*takes)
            assert sorted(task.data for task in found if task is not None) == list(range(100))

    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "penstock"):
        in_loop(main)
    logged = sum("blocked calls resume when it returns" in record.getMessage() for record in caplog.records)
    # Once a second, by each thread that may retry at the same time; not once per waiter and attempt.
    assert logged <= REMOTE_THREADS * (1 + time.monotonic() - began)
