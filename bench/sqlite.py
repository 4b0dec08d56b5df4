"""One process on SQLite, compared with the bare driver in the same run; and the memory store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import penstock
from bench.bare import BareTable
from bench.rates import NAMES, WORK, Bare, Ours, compare, rate
from bench.reporting import Line, Size, Target

# Figures of another machine, from BENCH.md: an order of magnitude, not more.
_HUEY_FULL_DRAIN = 3_100
_TARGETS = {
    ("FULL", "put"): (Target("issue", 0.8, "× bare"), Target("T8", 0.9, "× bare")),
    ("FULL", "take_batches"): (Target("T10", 10 * _HUEY_FULL_DRAIN, "/s, 10 × huey FULL then", absolute=True),),
    ("relaxed", "put"): (
        Target("T9", 0.6, "× bare"),
        Target("T9", 34_000, "/s, tarantool's Lua then", absolute=True),
    ),
    ("relaxed", "take"): (
        Target("issue", 0.5, "× bare"),
        Target("T9", 0.6, "× bare"),
        Target("T9", 11_900, "/s, tarantool's Lua then", absolute=True),
    ),
    ("relaxed", "put_batches"): (Target("issue", 100_000, "/s", absolute=True),),
}


def full(size: Size) -> Iterator[Line]:
    """Every commit is on disk."""
    yield from _beside_bare("FULL", single=size.pick(300, 1000), batched=size.pick(3000, 10_000), size=size)


def relaxed(size: Size) -> Iterator[Line]:
    """Commits do not wait for the disk."""
    yield from _beside_bare("relaxed", single=size.pick(2000, 5000), batched=size.pick(10_000, 20_000), size=size)


def memory(size: Size) -> Iterator[Line]:
    """The memory store: the cost of penstock without a disk."""
    with penstock.connect("memory://bench") as broker:
        queue = Ours(broker.tube("jobs"))
        tasks = size.pick(5000, 20_000)
        rates = {work: [0.0] * 0 for work in WORK}
        for _ in range(size.pick(3, 7)):
            for work in WORK:
                rates[work].append(rate(getattr(queue, work), tasks))
    for work in WORK:
        yield Line(f"memory: {NAMES[work]}", median(rates[work]), "/s")


def _beside_bare(durability: str, *, single: int, batched: int, size: Size) -> Iterator[Line]:
    synchronous = "FULL" if durability == "FULL" else "NORMAL"
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/ours.db?durability={'full' if durability == 'FULL' else 'relaxed'}"
        table = BareTable(Path(folder) / "bare.db", synchronous)
        with penstock.connect(url) as broker:
            ours, bare = Ours(broker.tube("jobs")), Bare(table)
            found = compare(ours, bare, size.pick(5, 9), single=single, batched=batched)
        table.close()
    for work, rates in found.items():
        name = f"SQLite {durability}: {NAMES[work]}"
        yield Line(name, rates.rate, "/s", rates.base, rates.ratio, _TARGETS.get((durability, work), ()))
