"""The app whose tasks workers run in the benchmarks: 100 bytes of data, and handlers that do nothing."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import penstock
from bench.peers import marks

app = penstock.App()


@app.task(tube="noop")
def noop(data: str) -> None:
    """Do nothing."""


@app.task(tube="kept")
def kept(data: str) -> str:
    """Return the data, which is kept as the result."""
    return data


@app.task(tube="noop-process", executor="process")
def noop_process(data: str) -> None:
    """Do nothing, in another process."""


@app.task(tube="stamp")
def stamp(sent: int, port: int) -> None:
    """Send the time from put to start, in ns of the clock that all processes share, as the peers do."""
    took = time.monotonic_ns() - sent
    _server(port).lpush("stamps", took)


@app.task(tube="sleep", max_attempts=1)
async def sleep(path: str) -> None:
    """Sleep until cancelled, and write the time to a file."""
    try:
        await asyncio.sleep(3600)
    finally:
        _note(path, f"{penstock.current_task().id} {time.monotonic_ns()}")


@app.task(tube="marks")
def mark(number: int) -> None:
    """Record that the task was run."""
    marks.mark(number)


def produce(first: int, count: int) -> None:
    """Put tasks with these numbers, ten at a time."""
    for number in range(first, first + count, 10):
        mark.put_many(range(number, number + 10))


def _note(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


@functools.cache
def _server(port: int) -> Any:
    import redis  # not for workers on another store

    return redis.Redis(port=port)
