"""huey: four threads, no results. On SQLite every commit is on disk, as on our own file."""

from __future__ import annotations

import os
import random
import time
from importlib import import_module
from typing import Any

from bench.peers import marks

WORKER = ["-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "-w", "4", "-n", "-q"]
_url = os.environ["BENCH_PEER_URL"]
_library: Any = import_module("huey")
if _url.startswith("sqlite"):
    huey = _library.SqliteHuey("bench", filename=_url.removeprefix("sqlite:///"), fsync=True, results=False)
else:
    huey = _library.RedisHuey("bench", url=_url, results=False)


@huey.task()  # type: ignore[untyped-decorator]
def noop(data: str) -> None:
    """Do nothing."""


@huey.task()  # type: ignore[untyped-decorator]
def stamp(sent: int) -> None:
    """Send the time from put to start."""
    huey.storage.conn.lpush("stamps", time.monotonic_ns() - sent)


@huey.task()  # type: ignore[untyped-decorator]
def mark(number: int) -> None:
    """Record that the task was run."""
    marks.mark(number)


def produce(first: int, count: int) -> None:
    """Put tasks with these numbers, one by one: huey has no bulk put."""
    for number in range(first, first + count):
        mark(number)


def put(count: int, data: str) -> None:
    huey.flush()
    for _ in range(count):
        noop(data)


def latency(count: int) -> list[float]:
    """Milliseconds from put to start of each of `count` tasks, one after the other."""
    found = []
    for number in range(count + 1):  # the first waits for the worker to start
        time.sleep(random.uniform(0.02, 0.06))
        stamp(time.monotonic_ns())
        _, took = huey.storage.conn.blpop("stamps", 30)
        found += [int(took) / 1e6] if number else []
    return found


def left() -> int:
    return int(huey.pending_count())
