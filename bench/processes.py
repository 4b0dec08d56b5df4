"""Several processes on one SQLite file: throughput, how soon a put starts elsewhere, what idling costs."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from statistics import quantiles

import penstock
from bench.report import Line, Size, Target

# Spawned, not forked: what is measured is a program of its own, not a copy of this one.
SPAWN = multiprocessing.get_context("spawn")
PRODUCERS = 4
CONSUMERS = 4
PUT_BATCH = 10
LAST = -1  # data that tells a consumer to stop
_HUEY_FULL = 1_500  # 4 producers and 4 consumers, FULL, on BENCH.md's machine


def crowd(size: Size) -> Iterator[Line]:
    """4 producers and 4 consumers on SQLite FULL; every task must come out exactly once."""
    tasks = size.pick(4_000, 20_000)
    targets = (Target("T11", 5 * _HUEY_FULL, "/s, 5 × huey FULL then", absolute=True),)
    for batch in (100, 1):
        seconds, lost, twice = _crowd(tasks, batch)
        name = f"SQLite FULL: 4 producers, 4 consumers of {batch}"
        note = f"{tasks:,} tasks, {lost} lost, {twice} twice"
        faults = Target("T11", 0, "lost or handed out twice", at_most=True)
        yield Line(name, tasks / seconds, "/s", targets=targets if batch > 1 else (), note=note)
        yield Line(f"{name}: faults", lost + twice, "tasks", targets=(faults,))


def _crowd(tasks: int, batch: int) -> tuple[float, int, int]:
    """Seconds from the common start to the last ack, and how many tasks were lost and handed out twice."""
    with _database() as url:
        start = SPAWN.Barrier(PRODUCERS + CONSUMERS + 1, timeout=60)  # a child that failed breaks it
        share = tasks // PRODUCERS
        producers = [_child(_produce, url, start, part * share, share)[0] for part in range(PRODUCERS)]
        consumers = [_child(_consume, url, start, batch) for _ in range(CONSUMERS)]
        start.wait()
        began = time.monotonic()
        for process in producers:
            process.join()
        with penstock.connect(url) as broker:
            broker.tube("jobs").put_many([LAST] * CONSUMERS, pri=1)
        results = [pipe.recv() for _, pipe in consumers]
        for process, _ in consumers:
            process.join()
    got = [number for numbers, _ in results for number in numbers]
    return max(ended for _, ended in results) - began, tasks - len(set(got)), len(got) - len(set(got))


def _produce(pipe: Connection, url: str, start: Barrier, first: int, share: int) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("jobs")
        start.wait()
        for number in range(first, first + share, PUT_BATCH):
            tube.put_many(range(number, number + PUT_BATCH))


def _consume(pipe: Connection, url: str, start: Barrier, batch: int) -> None:
    got: list[object] = []
    ended = 0.0
    with penstock.connect(url) as broker:
        tube = broker.tube("jobs")
        start.wait()
        while LAST not in got:
            tasks = tube.take_many(batch, timeout=10)
            if not tasks:
                break
            spare = [task for task in tasks if task.data == LAST][1:]  # the others' signs to stop
            for task in spare:
                task.release()
            mine = [task for task in tasks if task not in spare]
            assert all(tube.ack_many(mine))
            got += [task.data for task in mine]
            if any(task.data != LAST for task in mine):
                ended = time.monotonic()
    pipe.send(([number for number in got if number != LAST], ended))


def latency(size: Size) -> Iterator[Line]:
    """From just before put to the moment the handler would start, in another process that was idle."""
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
    """The CPU that a taker uses while nothing comes."""
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
    """The URL of a fresh file with the tube, FULL."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/queue.db"
        with penstock.connect(url) as broker:
            broker.tube("jobs")
        yield url


def _child(work: object, *args: object) -> tuple[SpawnProcess, Connection]:
    """Start a process that runs work(pipe, *args); the process, and this end of its pipe."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(there, *args), daemon=True)  # type: ignore[arg-type]
    process.start()
    there.close()
    return process, here
