"""What must not grow with the number of tasks: the drain rate by backlog, and busy micro-queues."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import penstock
from bench import private_servers
from bench.rates import Ours, Rates, alternate
from bench.reporting import Line, Size, Target

SMALL = 10_000
CHUNK = 10_000
UTUBES = 10
# tarantool's own benchmark of busy micro-queues, its ready buffer, in seconds by N (BENCH.md).
TARANTOOL = {1_000: 0.45, 10_000: 4.7, 150_000: 72.0}


def backlog(size: Size) -> Iterator[Line]:
    """Drain in batches of 100 and one by one, from a small and a large backlog, which is refilled."""
    large = size.pick(100_000, 1_000_000)
    for store in ("SQLite relaxed", "memory", *private_servers.NAMES):
        batches, singles = Rates([], []), Rates([], [])
        with ExitStack() as opened:
            connect = _connector(opened, store)
            deep, shallow = (_filled(connect(f"backlog-{depth}"), depth) for depth in (large, SMALL))
            for round in range(size.pick(5, 9)):
                first = round % 2 == 0
                alternate(deep.take_batches, shallow.take_batches, 5000, batches, first)
                alternate(deep.take, shallow.take, size.pick(200, 1000), singles, first)
                for queue in (deep, shallow):
                    queue.put_batches(6000)
        target = (Target("T13", 0.9, f"× the rate at {SMALL:,}"),)
        for name, rates in (("batches of 100", batches), ("one by one", singles)):
            work = f"{private_servers.NAMES.get(store, store)}: drain at {large:,}, {name}"
            yield Line(work, rates.rate, "/s", rates.base, rates.ratio, target)


def _connector(opened: ExitStack, store: str) -> Callable[[str], penstock.Broker]:
    """A function that opens brokers, each on its own store."""
    if store not in private_servers.NAMES:
        return lambda name: _broker(opened, store, name)
    server = opened.enter_context(private_servers.running(store))
    return lambda name: opened.enter_context(penstock.connect(private_servers.store_url(store, server)))


def _filled(broker: penstock.Broker, tasks: int) -> Ours:
    queue = Ours(broker.tube("jobs"))
    queue.put_batches(tasks)
    return queue


def _broker(opened: ExitStack, store: str, name: str) -> penstock.Broker:
    if store == "memory":
        return opened.enter_context(penstock.connect(f"memory://{name}"))
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
    return opened.enter_context(penstock.connect(f"sqlite:///{folder}/{name}.db?durability=relaxed"))


def utubes(size: Size) -> Iterator[Line]:
    """tarantool's benchmark: 10 micro-queues of N tasks, 10 consumers that take and then ack.

    tarantool's consumers are fibers of one thread. The equivalent here is ten sessions that take turns, each holding
    a task while the next one takes. Ten threads are measured as well, with the smaller N.
    """
    counts = [1_000] if size.quick else [1_000, 10_000, *([150_000] if size.long else [])]
    for store in ("SQLite relaxed", "memory"):
        seconds_each: list[float] = []
        for count in counts:
            seconds = _drain_utubes(store, count, threads=False)
            seconds_each.append(seconds / count)
            name = f"{store}: utube 10 × {count:,}, 10 sessions"
            yield _utube_line(name, seconds, count, f"{UTUBES * count / seconds:,.0f} tasks/s")
        if len(seconds_each) > 1:
            rate = seconds_each[0] / seconds_each[-1]
            target = (Target("T14 linear", 0.9, f"× the rate at {counts[0]:,}"),)
            yield Line(f"{store}: utube rate at {counts[-1]:,}", rate, "×", ratio=rate, targets=target)
        seconds = _drain_utubes(store, 1_000, threads=True)
        note = f"{UTUBES * 1_000 / seconds:,.0f} tasks/s"
        yield Line(f"{store}: utube 10 × 1,000, 10 threads", seconds, "s", note=note)


def _utube_line(name: str, seconds: float, count: int, note: str) -> Line:
    target = Target("T14", TARANTOOL[count], "s, tarantool then", at_most=True, absolute=True)
    return Line(name, seconds, "s", targets=(target,), note=note)


def _drain_utubes(store: str, count: int, *, threads: bool) -> float:
    with ExitStack() as opened:
        broker = _broker(opened, store, f"utubes-{count}-{threads}")
        tube = broker.tube("jobs", kind="utube")
        for start in range(0, UTUBES * count, CHUNK):
            numbers = range(start, min(start + CHUNK, UTUBES * count))
            tube.put_many([(number, {"utube": number % UTUBES}) for number in numbers])
        consumers = [opened.enter_context(broker.session()).tube("jobs") for _ in range(UTUBES)]
        began = time.perf_counter()
        if threads:
            _in_threads(consumers)
        else:
            _in_turn(consumers, count)
        seconds = time.perf_counter() - began
        assert tube.stats().tasks.done == UTUBES * count
        return seconds


def _in_turn(consumers: list[penstock.Tube], count: int) -> None:
    for _ in range(count):
        tasks = [consumer.take(0) for consumer in consumers]
        for task in tasks:
            assert task is not None
            task.ack()


def _in_threads(consumers: list[penstock.Tube]) -> None:
    def consume(tube: penstock.Tube) -> None:
        while (task := tube.take(0)) is not None:
            task.ack()

    threads = [threading.Thread(target=consume, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
