"""The cost of each verb on each store: the time that the caller waits, its CPU time, and the server's.

CPU time is nearly the same on a busy machine; the waiting time is not. docs/scaling.md uses the server's CPU time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import penstock
from bench import private_servers
from bench.noop import noop
from bench.reporting import Line, Size
from bench.worker_rates import worker_process

DATA = "x" * 100
RESULT = "r" * 20
MANY, SOME = 1000, 100
STORES = ("sqlite", "sqlite-relaxed", "postgres", "mariadb", "redis", "redis-cluster")

# The name of a line, how many tasks it is about, and the work.
Work = tuple[str, int, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per task: waiting time, CPU time of the caller, CPU time of the server."""

    wait: float
    caller: float
    server: float


def cost(size: Size) -> Iterator[Line]:
    """Every verb on every store; the median of the rounds."""
    for store in STORES:
        rounds: dict[str, list[Cost]] = {}
        with _running(store) as url, penstock.connect(url) as broker:
            for _ in range(size.pick(1, 3)):
                for name, tasks, work in works(broker, size.pick(100, 500)):
                    rounds.setdefault(name, []).append(_measured(tasks, work))
            for name, found_cost in _handled(url, broker, size.pick(2, 20), size.pick(1, 3)):
                rounds.setdefault(name, []).append(found_cost)
        for name, found in rounds.items():
            wait, caller, server = (median(getattr(each, part) for each in found) for part in Cost.__slots__)
            note = f"CPU: caller {caller:.1f} µs, server {server:.1f} µs"
            yield Line(f"{store}: {name}", wait, "µs a task", note=note)


def works(broker: penstock.Broker, calls: int) -> Iterator[Work]:
    """The verbs, in an order in which each finds the tasks it needs; the tube is empty before and after."""
    tube = broker.tube("cost", ttr=600)
    tube.truncate()
    held: list[penstock.Task] = []
    ids: list[int | str] = []
    yield "put", calls, lambda: [tube.put(DATA) for _ in range(calls)]
    yield "take", calls, lambda: held.extend(task for _ in range(calls) if (task := tube.take(0)))
    yield "touch", calls, lambda: [tube.touch(task, 1) for task in held]
    yield "release", calls, lambda: [tube.release(task) for task in held]
    held = tube.take_many(calls)
    yield "ack", calls, lambda: [tube.ack(task) for task in held]
    ids = [task.id for task in tube.put_many([DATA] * calls)]
    yield "peek", calls, lambda: [tube.peek(id) for id in ids]
    yield "bury", calls, lambda: [tube.bury(id) for id in ids]
    yield "kick, all at once", calls, lambda: tube.kick(calls)
    yield "delete", calls, lambda: [tube.delete(id) for id in ids]
    yield "stats", calls, lambda: [tube.stats() for _ in range(calls)]
    named = [(DATA, {"address": f"a{number}"}) for number in range(MANY)]
    yield "put_many of 1,000 with addresses", MANY, lambda: tube.put_many(named)
    held = tube.take_many(MANY)
    yield "ack with a result", calls, lambda: [tube.ack(task, RESULT) for task in held[:calls]]
    tube.truncate()
    batches = max(2, calls // 50)
    yield "put_many of 1,000", batches * MANY, lambda: [tube.put_many([DATA] * MANY) for _ in range(batches)]
    taken: list[list[penstock.Task]] = []
    times = batches * MANY // SOME
    yield "take_many of 100", times * SOME, lambda: taken.extend(tube.take_many(SOME) for _ in range(times))
    yield "ack_many of 100", times * SOME, lambda: [tube.ack_many(tasks) for tasks in taken]
    assert not len(tube)


def _handled(url: str, broker: penstock.Broker, batches: int, rounds: int) -> Iterator[tuple[str, Cost]]:
    """Empty handlers without a result, put here and run by a worker process, which counts as the caller."""
    tube = broker.tube("noop")
    noop.connection.use(url)
    with worker_process(url) as worker:
        for _ in range(rounds):
            tube.pause()
            tasks = batches * MANY
            put = _measured(tasks, lambda: [noop.put_many(["x" * 80] * MANY) for _ in range(batches)], worker)
            yield "handler.put_many of 1,000", put
            server, caller, began = _cpu(_servers(worker)), _cpu([worker]), time.perf_counter()
            tube.resume()
            while tube.stats().tasks.total:
                time.sleep(0.02)
            wait, caller = time.perf_counter() - began, _cpu([worker]) - caller
            yield "run by a worker", _each(tasks, wait, caller, _cpu(_servers(worker)) - server)
    noop.connection.close()


@contextmanager
def _running(store: str) -> Iterator[str]:
    """The URL of a fresh store."""
    if store.startswith("sqlite"):
        durability = "?durability=relaxed" if store.endswith("relaxed") else ""
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            yield f"sqlite:///{folder}/queue.db{durability}"
        return
    with private_servers.running(store) as server:
        yield private_servers.store_url(store, server)


def _measured(tasks: int, work: Callable[[], object], worker: int | None = None) -> Cost:
    server, caller, began = _cpu(_servers(worker)), time.process_time(), time.perf_counter()
    work()
    wait, caller = time.perf_counter() - began, time.process_time() - caller
    return _each(tasks, wait, caller, _cpu(_servers(worker)) - server)


def _each(tasks: int, wait: float, caller: float, server: float) -> Cost:
    return Cost(*(seconds / tasks * 1e6 for seconds in (wait, caller, server)))


def _servers(worker: int | None) -> list[int]:
    """Every process that this one has started, except a worker."""
    return [pid for pid in _below(os.getpid()) if pid != worker]


def _below(pid: int) -> Iterator[int]:
    for thread in _threads(pid):
        for child in map(int, _read(thread / "children").split()):
            yield child
            yield from _below(child)


def _cpu(pids: Iterable[int]) -> float:
    """The CPU time of these processes, in seconds; the kernel counts it in nanoseconds."""
    return sum(int((_read(thread / "schedstat") or "0").split()[0]) for pid in pids for thread in _threads(pid)) / 1e9


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""
