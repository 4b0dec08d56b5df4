"""How soon a thousand running handlers learn that their tasks were cancelled, and the CPU that the checks cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

import penstock
from bench.noop import sleep
from bench.private_servers import fresh_store
from bench.reporting import Line, Size, Target
from bench.worker_rates import cpu_seconds, worker_process

STORES = ("sqlite", "redis", "postgres", "mariadb")


def cancel(size: Size) -> Iterator[Line]:
    """1,000 coroutines in one worker, on each store."""
    handlers = size.pick(200, 1_000)
    for store in STORES:
        with fresh_store(store) as (url, folder):
            yield from _notified(store, url, Path(folder, "notified"), handlers)


def _notified(store: str, url: str, notified: Path, handlers: int) -> Iterator[Line]:
    with penstock.connect(url) as broker, worker_process(url, "sleep", "--concurrency", str(handlers)) as pid:
        sleep.connection.use(url)
        ids = [handle.id for handle in sleep.put_many([str(notified)] * handlers)]
        sleep.connection.close()
        tube = broker.tube("sleep")
        while tube.stats().tasks.taken < handlers:
            time.sleep(0.1)
        time.sleep(2)  # all of them have begun
        used, began = cpu_seconds(pid), time.monotonic()
        time.sleep(5)
        share = (cpu_seconds(pid) - used) / (time.monotonic() - began) * 100
        cancelled = {}
        for id in ids:
            tube.cancel(id)
            cancelled[id] = time.monotonic_ns()
        while len(lines := notified.read_text().splitlines() if notified.exists() else []) < handlers:
            time.sleep(0.1)
    waits = [(int(at) - cancelled[int(id)]) / 1e9 for id, at in map(str.split, lines)]
    second = (Target("SPEC 10", 1, "s", at_most=True, absolute=True),)
    yield Line(f"{store}: cancel→notice, {handlers:,} running handlers, p50", quantiles(waits, n=100)[49], "s")
    yield Line(
        f"{store}: cancel→notice, {handlers:,} running handlers, p99",
        quantiles(waits, n=100)[98],
        "s",
        targets=second,
    )
    yield Line(f"{store}: a worker with {handlers:,} running handlers that do nothing", share, "% of a core")
