"""Two processes on one SQLite file: the time from a put to its start in the other, and the CPU of an idle taker."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from statistics import quantiles

import penstock
from bench.reporting import Line, Size, Target

# Spawned, not forked: a separate program is measured, not a copy of this one.
SPAWN = multiprocessing.get_context("spawn")
LAST = -1  # data that tells the taker to stop


def latency(size: Size) -> Iterator[Line]:
    """The time from just before put to the start of the handler in another, idle process."""
    with _database() as url:
        process, pipe = _child(_stamp, url)
        waits = []
        with penstock.connect(url) as broker:
            tube = broker.tube("jobs")
            pipe.recv()
            for _ in range(size.pick(40, 120)):
                time.sleep(random.uniform(0.05, 0.15))
                tube.put(time.monotonic_ns())
                waits.append(pipe.recv() / 1e6)
            tube.put(LAST)
        process.join()
    cuts = quantiles(waits, n=100)
    limit = (Target("SPEC 4", 20, "ms", at_most=True, absolute=True),)
    yield Line("SQLite FULL: put→start in another process, p50", cuts[49], "ms", targets=limit)
    yield Line("SQLite FULL: put→start in another process, p99", cuts[98], "ms", targets=limit)


def _stamp(pipe: Connection, url: str) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("jobs")
        pipe.send("ready")
        while (task := tube.take()) is not None and isinstance(task.data, int) and task.data != LAST:
            pipe.send(time.monotonic_ns() - task.data)
            task.ack()


def idle(size: Size) -> Iterator[Line]:
    """The CPU that a blocked taker uses while nothing is put."""
    seconds = size.pick(3, 5)
    with _database() as url:
        process, pipe = _child(_wait_idly, url, seconds)
        share = pipe.recv()
        process.join()
    target = (Target("T17", 1, "% of a core", at_most=True, absolute=True),)
    yield Line(f"SQLite FULL: idle blocked taker over {seconds} s", share * 100, "%", targets=target)


def _wait_idly(pipe: Connection, url: str, seconds: float) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("jobs")
        tube.take(0.5)  # the session has joined and its thread runs
        began, used = time.monotonic(), time.process_time()
        tube.take(seconds)
        pipe.send((time.process_time() - used) / (time.monotonic() - began))


@contextmanager
def _database() -> Iterator[str]:
    """The URL of a fresh file with the tube, with synchronous=FULL."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/queue.db"
        with penstock.connect(url) as broker:
            broker.tube("jobs")
        yield url


def _child(work: object, *args: object) -> tuple[SpawnProcess, Connection]:
    """Start a process that runs work(pipe, *args). Returns the process and this end of its pipe."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(there, *args), daemon=True)  # type: ignore[arg-type]
    process.start()
    there.close()
    return process, here
