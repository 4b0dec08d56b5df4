"""huey on Redis, the fastest Python peer of BENCH.md, with the same work. Its consumer imports this module, too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

THREADS = "4"


def make(url: str) -> tuple[Any, Any]:
    """A huey on that server, and its task. ImportError where huey is not installed."""
    huey = import_module("huey").RedisHuey("bench", url=url, results=False)
    return huey, huey.task()(noop)


def noop(data: str) -> None:
    """Do nothing."""


def drain_rate(url: str, tasks: int, data: str) -> float:
    """Tasks a second of one consumer process, from its first task to its last."""
    huey, task = make(url)
    huey.flush()
    for _ in range(tasks):
        task(data)
    command = [sys.executable, "-m", "huey.bin.huey_consumer", "bench.peer.huey", "-w", THREADS, "-n", "-q"]
    consumer = subprocess.Popen(command, env={**os.environ, "BENCH_PEER_URL": url})
    try:
        while huey.pending_count() == tasks:
            time.sleep(0.005)
        began, left = time.perf_counter(), huey.pending_count()
        while huey.pending_count():
            time.sleep(0.005)
        return float(left / (time.perf_counter() - began))
    finally:
        consumer.kill()
        consumer.wait()


if "BENCH_PEER_URL" in os.environ:  # in the consumer
    huey, _ = make(os.environ["BENCH_PEER_URL"])
