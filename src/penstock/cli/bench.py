"""`penstock bench`: how fast this store is from this host, measured in a temporary tube."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import click
import msgspec

import penstock
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import DEFAULT_KIND
from penstock.cli import output, params

_BATCH = 100
# The most tasks that are put: enough to measure a rate, and removed in a few seconds on any store.
_MOST = 100_000


class Phase(msgspec.Struct, frozen=True):
    """One measurement: how many tasks in how many seconds, and how long one call took."""

    work: str
    tasks: int
    seconds: float
    per_second: float
    call_ms: float


@click.command()
@click.option("--seconds", type=params.Seconds(0.1, 3600), default=8, show_default=True, help="About how long to run.")
@click.option(
    "--size", type=click.IntRange(1, 1024 * 1024), default=100, show_default=True, help="Size of a task in bytes."
)
@click.option("--kind", default=DEFAULT_KIND, show_default=True, help="The kind of the temporary tube.")
@output.json_option
@click.pass_obj
def bench(url: str, seconds: float, size: int, kind: str, as_json: bool) -> None:
    """Measure how many tasks per second this store puts, takes and acks.

    \b
    penstock bench
    penstock --url redis://localhost/0 bench --seconds 20 --size 1000

    It uses a temporary tube, named penstock.bench. followed by digits, and drops it at the end, even after Ctrl-C. One
    process makes one call at a time: several workers together reach more.
    """
    with penstock.connect(url) as broker:
        about = broker.runtime.store.describe()
        with _temporary_tube(broker, kind) as tube:
            phases = list(measured(tube, seconds, b"x" * size))
    if as_json:
        return output.as_json({"store": about.store, "durability": about.durability, "size": size, "phases": phases})
    click.echo(f"{about.store} {about.version}: {about.durability}")
    rows = [[p.work, f"{p.tasks:,}", f"{p.per_second:,.0f}", f"{p.call_ms:.3f}"] for p in phases]
    return output.table(("work", "tasks", "per second", "ms per call"), rows)


@contextmanager
def _temporary_tube(broker: penstock.Broker, kind: str) -> Iterator[Tube]:
    tube = broker.create_tube(f"penstock.bench.{uuid4().hex[:12]}", kind)
    try:
        yield tube
    finally:
        with output.working("dropping the temporary tube"):
            tube.truncate()  # after Ctrl-C tasks may be taken, and drop would refuse
            tube.drop()


def measured(tube: Tube, seconds: float, data: bytes) -> Iterator[Phase]:
    """Measure each phase for its share of the time."""
    batch = [data] * _BATCH
    works: dict[str, Callable[[], int]] = {
        "put": lambda: _put(tube, data),
        f"put_many of {_BATCH}": lambda: len(tube.put_many(batch)),
        "take and ack": lambda: _take_and_ack(tube, 1),
        f"take_many and ack_many of {_BATCH}": lambda: _take_and_ack(tube, _BATCH),
    }
    for work, call in works.items():
        with output.working(work):
            if work.startswith("take") and not len(tube):  # slow puts may have left fewer tasks than the takes need
                tube.put_many(batch)
            yield _phase(work, call, seconds / len(works))


def _put(tube: Tube, data: bytes) -> int:
    tube.put(data)
    return 1


def _take_and_ack(tube: Tube, count: int) -> int:
    tasks = tube.take_many(count)
    if tasks:
        tube.ack_many(tasks)
    return len(tasks)


def _phase(work: str, call: Callable[[], int], seconds: float) -> Phase:
    """Call until the time is over, or there is nothing left to do."""
    tasks, times = 0, []
    began = before = time.perf_counter()
    while before - began < seconds and tasks < _MOST and (done := call()):
        now = time.perf_counter()
        tasks += done
        times.append(now - before)
        before = now
    spent = sum(times)
    rate = tasks / spent if spent else 0.0
    return Phase(work, tasks, round(spent, 3), round(rate, 1), round(statistics.median(times or [0.0]) * 1000, 4))
