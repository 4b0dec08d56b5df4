"""Tasks per second of four ways to use a tube, for penstock and for a bare table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from penstock import Tube
from penstock.core import codec

DATA = "x" * 100
PUT_BATCH = 1000
TAKE_BATCH = 100


class Queue(Protocol):
    """Each call processes a number of tasks; a take call also removes them."""

    def put(self, tasks: int) -> None: ...
    def take(self, tasks: int) -> None: ...
    def put_batches(self, tasks: int) -> None: ...
    def take_batches(self, tasks: int) -> None: ...


class Table(Protocol):
    """A task table written by hand: each call is one transaction. ack gets what take returned."""

    def put(self, data: bytes) -> None: ...
    def put_many(self, items: Sequence[bytes]) -> None: ...
    def take(self) -> int | None: ...
    def ack(self, key: int) -> None: ...
    def take_many(self, count: int) -> list[int]: ...
    def ack_many(self, keys: Sequence[int]) -> None: ...


class Ours:
    """A penstock tube."""

    def __init__(self, tube: Tube) -> None:
        self._tube = tube

    def put(self, tasks: int) -> None:
        put = self._tube.put
        for _ in range(tasks):
            put(DATA)

    def take(self, tasks: int) -> None:
        tube = self._tube
        for _ in range(tasks):
            task = tube.take(0)
            assert task is not None
            tube.ack(task)

    def put_batches(self, tasks: int) -> None:
        for _ in range(tasks // PUT_BATCH):
            self._tube.put_many([DATA] * PUT_BATCH)

    def take_batches(self, tasks: int) -> None:
        for _ in range(tasks // TAKE_BATCH):
            taken = self._tube.take_many(TAKE_BATCH)
            assert len(taken) == TAKE_BATCH
            assert all(self._tube.ack_many(taken))


class Bare:
    """The same rows through the driver alone."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._data = codec.encode(DATA)

    def put(self, tasks: int) -> None:
        for _ in range(tasks):
            self._table.put(self._data)

    def take(self, tasks: int) -> None:
        for _ in range(tasks):
            key = self._table.take()
            assert key is not None
            self._table.ack(key)

    def put_batches(self, tasks: int) -> None:
        for _ in range(tasks // PUT_BATCH):
            self._table.put_many([self._data] * PUT_BATCH)

    def take_batches(self, tasks: int) -> None:
        for _ in range(tasks // TAKE_BATCH):
            keys = self._table.take_many(TAKE_BATCH)
            assert len(keys) == TAKE_BATCH
            self._table.ack_many(keys)


@dataclass(frozen=True, slots=True)
class Rates:
    """The rounds of one kind of work, in tasks a second."""

    ours: list[float]
    bare: list[float]

    @property
    def rate(self) -> float:
        return median(self.ours)

    @property
    def base(self) -> float:
        return median(self.bare)

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(one / other for one, other in zip(self.ours, self.bare, strict=True))

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios: both slices of a round had the same noise."""
        return median(self.ratios)


WORK = ("put", "take", "put_batches", "take_batches")
NAMES = {
    "put": "put one by one",
    "take": "take+ack one by one",
    "put_batches": "put_many of 1,000",
    "take_batches": "take_many+ack_many of 100",
}


def compare(ours: Queue, bare: Queue, rounds: int, *, single: int, batched: int) -> dict[str, Rates]:
    """Measure the four ways, alternating between ours and the bare table."""
    found = {work: Rates([], []) for work in WORK}
    for round in range(rounds):
        for work in WORK:
            tasks = batched if work.endswith("batches") else single
            alternate(getattr(ours, work), getattr(bare, work), tasks, found[work], round % 2 == 0)
    return found


def rate(work: Callable[[int], None], tasks: int) -> float:
    """Tasks per second of one slice."""
    began = time.perf_counter()
    work(tasks)
    return tasks / (time.perf_counter() - began)


def alternate(ours: Callable[[int], None], bare: Callable[[int], None], tasks: int, into: Rates, first: bool) -> None:
    """Measure one slice of each. The order changes from round to round, because the second one has a warmer disk."""
    for mine in (first, not first):
        (into.ours if mine else into.bare).append(rate(ours if mine else bare, tasks))
