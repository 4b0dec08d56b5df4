"""One worker process: how fast it drains empty tasks, compared with other queues, and its CPU while idle."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles

import redis

import penstock
from bench.noop import kept as results
from bench.noop import noop, noop_process, stamp
from bench.peer_queues import PeerQueues, waits
from bench.private_servers import NAMES, fresh_store
from bench.reporting import Line, Size, Target
from penstock.app.app import AnyHandler
from tests.servers.base import Server

DATA = "x" * 80  # 100 bytes and more, with the name


def drain_sqlite(size: Size) -> Iterator[Line]:
    """Every commit on disk, as huey's are."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        peers = PeerQueues({"huey": f"sqlite:///{folder}/huey.db"}, size.pick(1_500, 6_000), DATA)
        ours = _rates(f"sqlite:///{folder}/queue.db", size.pick(5_000, 30_000), size.pick(2, 5), peers.measure)
    issue = Target("issue", 10_000, "/s", absolute=True)
    yield Line("SQLite FULL: drain by one worker", median(ours), "/s", targets=(issue,))
    yield from peers.lines("SQLite FULL: drain by one worker", ours, "T10", {"huey": 10})


def drain_redis(size: Size) -> Iterator[Line]:
    """Compared with the queues of BENCH.md, each with its fastest settings."""
    from tests.servers.redis import Redis

    server = Redis()
    try:
        names = ("huey", "dramatiq", "saq", "celery", "rq", "bullmq")
        peers = PeerQueues(dict.fromkeys(names, server.url), size.pick(1_000, 4_000), DATA)
        ours = _rates(server.url, size.pick(20_000, 50_000), size.pick(1, 3), peers.measure)
        bounds = {name: 2.0 if name == "bullmq" else 10.0 for name in names}
        yield from peers.lines("Redis: drain by one worker", ours, "T1", bounds)
    finally:
        server.stop()


def drain_results(size: Size) -> Iterator[Line]:
    """Drain with kept results, interleaved with the same drain without."""
    for store in ("sqlite", *NAMES):
        with fresh_store(store) as (url, _), worker_process(url, "kept"):
            plain, kept = _with_and_without(url, size.pick(5_000, 20_000), size.pick(2, 5))
        ratio = median(one / other for one, other in zip(kept, plain, strict=True))
        work, target = f"{NAMES.get(store, 'SQLite FULL')}: drain with kept results", Target("T18", 0.6, "× without")
        yield Line(work, median(kept), "/s", median(plain), ratio, (target,))


def _with_and_without(url: str, tasks: int, rounds: int) -> tuple[list[float], list[float]]:
    kept: list[float] = []
    plain = _rates(url, tasks, rounds, lambda: kept.extend(_drain(url, tasks, 1, lambda: None, results)))
    return plain, kept


def drain_processes(size: Size) -> Iterator[Line]:
    """Handlers in two processes, compared with huey with two."""
    from tests.servers.redis import Redis

    server = Redis()
    try:
        peers = PeerQueues({"huey_process": server.url}, size.pick(3_000, 10_000), DATA)
        tasks, rounds = size.pick(3_000, 10_000), size.pick(2, 5)
        ours = _rates(server.url, tasks, rounds, peers.measure, noop_process, "--processes", "2")
        yield from peers.lines("Redis: drain by two processes", ours, "T19", {"huey_process": 1})
    finally:
        server.stop()


def drain_postgres(size: Size) -> Iterator[Line]:
    """Both with synchronous_commit off, as the tests' server has it."""
    from tests.servers.postgres import Postgres

    server = Postgres()
    try:
        peers = PeerQueues({"pgqueuer": server.url}, size.pick(4_000, 20_000), DATA)
        ours = _rates(server.url, size.pick(5_000, 30_000), size.pick(1, 3), peers.measure)
        yield from peers.lines("PostgreSQL: drain by one worker", ours, "T6", {"pgqueuer": 3})
    finally:
        server.stop()


def latency_redis(size: Size) -> Iterator[Line]:
    """The time from put to start in an idle worker process, compared with the fastest Python queue and BullMQ."""
    from tests.servers.redis import Redis

    count = size.pick(40, 200)
    server = Redis()
    try:
        ours = _waits(server, count)
        theirs = {name: waits(name, server.url, count) for name in ("huey", "bullmq")}
    finally:
        server.stop()
    for name, found in theirs.items():
        for part, cut in (("p50", 49), ("p99", 98)):
            line, figure = f"Redis: put→start in an idle worker, {part}, {name}", quantiles(ours, n=100)[cut]
            if isinstance(found, str):
                yield Line(line, figure, "ms", note=f"not measured: {name}: {found}")
                continue
            base = quantiles(found, n=100)[cut]
            targets = (Target("T4", 1, "× huey", at_most=True),) if name == "huey" else ()
            yield Line(line, figure, "ms", base, figure / base, targets)


def _waits(server: Server, count: int) -> list[float]:
    found = []
    with worker_process(server.url, "stamp"), redis.Redis(port=server.port) as client:
        stamp.connection.use(server.url)
        for number in range(count + 1):  # the first waits for the worker to start
            time.sleep(random.uniform(0.02, 0.06))
            stamp.put(time.monotonic_ns(), server.port)
            _, took = client.blpop(["stamps"], 30)
            found += [int(took) / 1e6] if number else []
        stamp.connection.close()
    return found


def _rates(
    url: str, tasks: int, rounds: int, between: Callable[[], None], handler: AnyHandler = noop, *options: str
) -> list[float]:
    """The rates of a worker that is started for it."""
    with worker_process(url, handler.rules.tube, *options):
        return _drain(url, tasks, rounds, between, handler)


def _drain(url: str, tasks: int, rounds: int, between: Callable[[], None], handler: AnyHandler) -> list[float]:
    """Tasks per second, from the moment that an idle worker gets a full tube until the tube is empty."""
    found = []
    with penstock.connect(url) as broker:
        tube = broker.tube(handler.rules.tube)
        handler.connection.use(url)
        for _ in range(rounds):
            tube.pause()
            for first in range(0, tasks, 1000):
                handler.put_many([DATA] * min(1000, tasks - first))
            began = time.perf_counter()
            tube.resume()
            while tube.stats().tasks.total:
                time.sleep(0.02)  # reading the counters costs the server time, too
            found.append(tasks / (time.perf_counter() - began))
            between()
        handler.connection.close()
    return found


def idle_worker(size: Size) -> Iterator[Line]:
    """The share of a core that an idle worker uses."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/queue.db"
        with penstock.connect(url) as broker, worker_process(url) as pid:
            broker.tube("noop")
            time.sleep(2)  # until it is idle
            before, began = cpu_seconds(pid), time.monotonic()
            time.sleep(size.pick(3, 10))
            share = (cpu_seconds(pid) - before) / (time.monotonic() - began) * 100
    yield Line(
        "SQLite: idle worker", share, "% of a core", targets=(Target("T17", 1, "%", at_most=True, absolute=True),)
    )


@contextmanager
def worker_process(url: str, tube: str = "noop", *options: str) -> Iterator[int]:
    """A worker of bench.noop; yields its process id."""
    command = [sys.executable, "-m", "penstock", "worker", "bench.noop:app", "--url", url, "--tubes", tube, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # its banner
    reader = threading.Thread(target=process.stderr.read)  # otherwise its log fills the pipe and blocks it
    reader.start()
    try:
        yield process.pid
    finally:
        process.terminate()
        reader.join()
        process.stderr.close()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """The CPU seconds that a process has used."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
