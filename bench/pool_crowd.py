"""Many threads and processes on a pool, compared with the same on its database alone."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from statistics import median
from threading import Thread

import penstock
from bench import private_servers
from bench.rates import DATA, Ours
from bench.reporting import Line, Size, Target

THREADS = 16
PROCESSES = 6
# The work of each thread or process: a method of Ours, its name in the results, and its target.
_WORK = (("put", "put", 0.8), ("take", "take+ack", 1.0))
_SPAWN = multiprocessing.get_context("spawn")


def pool_crowd_mariadb(size: Size) -> Iterator[Line]:
    """Threads and processes on a pool with MariaDB; target T21."""
    yield from _crowds("mariadb", size)


def pool_crowd_postgres(size: Size) -> Iterator[Line]:
    """The same with PostgreSQL."""
    yield from _crowds("postgres", size)


def _crowds(name: str, size: Size) -> Iterator[Line]:
    with ExitStack() as opened:
        redis, server = (opened.enter_context(private_servers.running(each)) for each in ("redis", name))
        behind, alone = (private_servers.store_url(name, server) for _ in range(2))
        sides = (redis.fresh_url(), behind), (alone, None)
        title, tasks, rounds = f"Redis with {private_servers.NAMES[name]} behind", size.pick(30, 100), size.pick(3, 5)
        found = [tuple(_threads(url, pool, tasks) for url, pool in sides) for _ in range(rounds)]
        yield _line(f"{title}: put from {THREADS} threads", found, 0.8)
        for work, shown, bound in _WORK:
            found = [tuple(_processes(url, pool, work, tasks) for url, pool in sides) for _ in range(rounds)]
            yield _line(f"{title}: {shown} from {PROCESSES} processes", found, bound)


def _line(name: str, found: list[tuple[float, ...]], bound: float) -> Line:
    ours, alone = zip(*found, strict=True)
    ratios = tuple(one / other for one, other in found)
    target = Target("T21", bound, "× the database alone")
    return Line(name, median(ours), "/s", median(alone), median(ratios), (target,), rounds=ratios)


def _threads(url: str, pool: str | None, tasks: int) -> float:
    """Puts a second of all threads."""
    with penstock.connect(url, pool=pool) as broker:
        queue, ready = Ours(broker.tube("jobs")), threading.Barrier(THREADS + 1)
        threads = [Thread(target=_run, args=(queue.put, tasks, ready)) for _ in range(THREADS)]
        return _timed(threads, ready, tasks)


def _processes(url: str, pool: str | None, work: str, tasks: int) -> float:
    """Tasks a second of all processes."""
    with penstock.connect(url, pool=pool) as broker:
        broker.tube("jobs").put_many([DATA] * PROCESSES * (tasks + 1) * (work == "take"))
    ready = _SPAWN.Barrier(PROCESSES + 1)
    members = [_SPAWN.Process(target=_member, args=(url, pool, work, tasks, ready)) for _ in range(PROCESSES)]
    return _timed(members, ready, tasks)


def _member(url: str, pool: str | None, work: str, tasks: int, ready: Barrier) -> None:
    with penstock.connect(url, pool=pool) as broker:
        _run(getattr(Ours(broker.tube("jobs")), work), tasks, ready)


def _run(work: Callable[[int], None], tasks: int, ready: Barrier | threading.Barrier) -> None:
    work(1)  # its connections are open
    ready.wait()
    work(tasks)
    ready.wait()


def _timed(members: Sequence[Thread | SpawnProcess], ready: Barrier | threading.Barrier, tasks: int) -> float:
    for member in members:
        member.start()
    ready.wait()
    began = time.perf_counter()
    ready.wait()
    seconds = time.perf_counter() - began
    for member in members:
        member.join()
    return len(members) * tasks / seconds
