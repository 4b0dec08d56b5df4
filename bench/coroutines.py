"""asyncio: a thousand calls in flight share store calls, compared with one call after the other in the same run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from bench.rates import DATA, Rates, rate
from bench.reporting import Line, Size, Target
from penstock import aio

IN_FLIGHT = 1000
Work = Callable[[aio.Tube, int], Coroutine[Any, Any, None]]


def awaited(size: Size) -> Iterator[Line]:
    """Puts on disk, and every verb in memory, where the overhead of asyncio is visible."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        targets = (Target("issue", 10, "× one by one"), Target("T12", 20, "× one by one"))
        yield from _beside_one_by_one("SQLite FULL", f"sqlite:///{folder}/aio.db", {"put": _put}, targets, size)
    yield from _beside_one_by_one("memory", "memory://bench", {"put": _put, "take+ack": _take}, (), size)


def _beside_one_by_one(
    store: str, url: str, works: dict[str, Work], targets: tuple[Target, ...], size: Size
) -> Iterator[Line]:
    found = {name: Rates([], []) for name in works}
    with asyncio.Runner() as runner:

        async def open_tube() -> tuple[aio.Broker, aio.Tube]:
            broker = await aio.connect(url)
            return broker, await broker.tube("jobs")

        broker, tube = runner.run(open_tube())
        for round in range(size.pick(5, 9)):
            for name, work in works.items():
                many = partial(_in_flight, runner, work, tube)
                single = partial(_one_by_one, runner, work, tube)
                for mine in (round % 2 == 0, round % 2 == 1):  # the second one finds a warmer disk
                    (found[name].ours if mine else found[name].bare).append(
                        rate(many, IN_FLIGHT) if mine else rate(single, size.pick(100, 300))
                    )
        runner.run(broker.close())
    for name, rates in found.items():
        yield Line(f"asyncio, {store}: {name}, 1,000 in flight", rates.rate, "/s", rates.base, rates.ratio, targets)


def _in_flight(runner: asyncio.Runner, work: Work, tube: aio.Tube, tasks: int) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(work(tube, 1) for _ in range(tasks)))

    runner.run(all_at_once())


def _one_by_one(runner: asyncio.Runner, work: Work, tube: aio.Tube, tasks: int) -> None:
    runner.run(work(tube, tasks))


async def _put(tube: aio.Tube, tasks: int) -> None:
    for _ in range(tasks):
        await tube.put(DATA)


async def _take(tube: aio.Tube, tasks: int) -> None:
    for _ in range(tasks):
        task = await tube.take(0)
        assert task is not None
        await task.ack()
