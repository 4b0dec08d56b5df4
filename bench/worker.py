"""One worker process: how fast it drains tasks that do nothing, and what it costs when there are none."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import penstock
from bench import peer
from bench.noop import noop
from bench.report import Line, Size, Target

DATA = "x" * 80  # 100 bytes and more, with the name
_HUEY_FULL_DRAIN = 3_100
_HUEY_REDIS_DRAIN = 3_300


def drain(size: Size) -> Iterator[Line]:
    """SQLite with every commit on disk, and Redis beside huey in the same run."""
    tasks, rounds = size.pick(5_000, 30_000), size.pick(3, 5)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rates = _rates(f"sqlite:///{folder}/queue.db", tasks, rounds, lambda: None)
    targets = (
        Target("issue", 10_000, "/s", absolute=True),
        Target("T10", 10 * _HUEY_FULL_DRAIN, "/s, 10 × huey FULL then", absolute=True),
    )
    yield Line("SQLite FULL: drain by one worker", median(rates), "/s", targets=targets)
    from tests.servers.redis import Redis

    server = Redis()
    try:
        yield _beside_huey(server.url, tasks, rounds)
    finally:
        server.stop()


def _beside_huey(url: str, tasks: int, rounds: int) -> Line:
    theirs: list[float] = []

    def measure_peer() -> None:
        try:
            theirs.append(peer.drain_rate(url, tasks // 3, DATA))
        except ImportError:
            pass

    ours = _rates(url, tasks, rounds, measure_peer)
    name = "Redis: drain by one worker"
    if not theirs:
        target = Target("T1", 10 * _HUEY_REDIS_DRAIN, "/s, 10 × huey then", absolute=True)
        return Line(name, median(ours), "/s", targets=(target,), note="huey is not installed here")
    ratio = median(one / other for one, other in zip(ours, theirs, strict=True))
    return Line(name, median(ours), "/s", median(theirs), ratio, (Target("T1", 10, "× huey"),))


def _rates(url: str, tasks: int, rounds: int, between: Callable[[], None]) -> list[float]:
    """Tasks a second, from the moment that a filled tube is opened to an idle worker until it is empty."""
    found = []
    with penstock.connect(url) as broker, _worker(url):
        tube = broker.tube("noop")
        noop.link.use(url)
        for _ in range(rounds):
            tube.pause()
            for first in range(0, tasks, 1000):
                noop.put_many([DATA] * min(1000, tasks - first))
            began = time.perf_counter()
            tube.resume()
            while tube.stats().tasks.total:
                time.sleep(0.02)  # a look costs the server something, too
            found.append(tasks / (time.perf_counter() - began))
            between()
        noop.link.close()
    return found


def idle_worker(size: Size) -> Iterator[Line]:
    """The share of a core that a worker uses while nothing comes."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/queue.db"
        with penstock.connect(url) as broker, _worker(url) as pid:
            broker.tube("noop")
            time.sleep(2)  # it has settled down
            before, began = _cpu_seconds(pid), time.monotonic()
            time.sleep(size.pick(3, 10))
            share = (_cpu_seconds(pid) - before) / (time.monotonic() - began) * 100
    yield Line(
        "SQLite: idle worker", share, "% of a core", targets=(Target("T17", 1, "%", at_most=True, absolute=True),)
    )


@contextmanager
def _worker(url: str) -> Iterator[int]:
    command = [sys.executable, "-m", "penstock", "worker", "bench.noop:app", "--url", url]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # its banner
    try:
        yield process.pid
    finally:
        process.terminate()
        process.communicate()


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
