"""The cost of put, take and ack as tubes grow, in steps of SQLite's virtual machine instead of seconds.

Ten or a hundred times the tasks may add a few comparisons in a deeper tree, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.testing import Clock
from tests.support.quiet_broker import quiet
from tests.support.sqlite_files import connection_of

GROWTH = 1.5


class Steps:
    """Counts the virtual machine's steps of everything that a broker's connection runs."""

    def __init__(self, broker: penstock.Broker) -> None:
        quiet(broker)
        self._db = connection_of(broker).open()
        self.steps = 0

    def of(self, call: Callable[[], object]) -> int:
        """The steps of one call."""
        self.steps = 0
        self._db.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)
        try:
            call()
        finally:
            self._db.trace_v2(0, None)
        assert self.steps > 0, "nothing was counted"
        return self.steps

    def _count(self, event: dict[str, object]) -> None:
        status = event["stmt_status"]
        assert isinstance(status, dict)
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[penstock.Broker]:
    clock = Clock()
    with penstock.connect(f"sqlite:///{tmp_path}/queue.db?durability=relaxed", clock=clock) as broker:
        quiet(broker)
        yield broker


def costs(broker: penstock.Broker, tube: penstock.Tube, **options: object) -> dict[str, int]:
    """The median of a few calls, because one that splits a page costs more than others."""
    steps = Steps(broker)
    tasks: list[penstock.Task] = []

    def take() -> None:
        task = tube.take(0)
        assert task is not None
        tasks.append(task)

    put: list[int] = []
    verbs: dict[str, Callable[[], object]] = {
        "put": lambda: put.append(tube.put("x", **options).id),  # type: ignore[arg-type]
        "peek": lambda: tube.peek(put[-1]),
        "take": take,
        "release": lambda: tasks.pop().release(),
        "take again": take,
        "ack": lambda: tasks.pop().ack(),
        "stats": lambda: tube.stats(),
    }
    rounds: dict[str, list[int]] = {name: [] for name in verbs}
    for _ in range(5):
        for name, verb in verbs.items():
            rounds[name].append(steps.of(verb))
    return {name: sorted(found)[2] for name, found in rounds.items()}


def must_not_grow(small: dict[str, int], large: dict[str, int]) -> None:
    grown = {name: (steps, large[name]) for name, steps in small.items() if large[name] > GROWTH * steps}
    assert not grown, f"steps on a small and on a large tube: {grown}"


def put_up_to(tube: penstock.Tube, count: int, item: Callable[[int], object] = lambda number: number) -> None:
    tube.put_many(item(number) for number in range(tube.stats().calls.put, count))


@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_a_hundred_times_the_ready_tasks_cost_no_more(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    put_up_to(tube, 1_000)
    small = costs(broker, tube)
    put_up_to(tube, 100_000)
    must_not_grow(small, costs(broker, tube))


@pytest.mark.parametrize(("kind", "fair"), [("utube", False), ("utube", True), ("utubettl", False)])
def test_two_hundred_times_the_busy_micro_queues_cost_no_more(broker: penstock.Broker, kind: str, fair: bool) -> None:
    tube = broker.tube("t", kind=kind, fair=fair)

    def busy(count: int) -> None:
        """That many micro-queues, each with one taken and one ready task."""
        before = tube.stats().calls.put // 2
        tube.put_many((n, {"utube": n // 2}) for n in range(2 * before, 2 * count))
        while tube.take_many(10_000):
            pass

    busy(100)
    small = costs(broker, tube, utube="mine")
    busy(20_000)
    must_not_grow(small, costs(broker, tube, utube="mine"))


@pytest.mark.parametrize("kind", ["utube", "utubettl"])
def test_one_micro_queue_of_a_hundred_thousand_costs_no_more(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=2)
    put_up_to(tube, 1_000, lambda number: (number, {"utube": "u"}))
    small = costs(broker, tube, utube="u")
    put_up_to(tube, 100_000, lambda number: (number, {"utube": "u"}))
    must_not_grow(small, costs(broker, tube, utube="u"))


def test_delayed_and_buried_tasks_do_not_block_others(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    put_up_to(tube, 100)
    small = costs(broker, tube)
    tube.put_many(range(30_000), delay=1000)
    tube.put_many(range(30_000), ttl=1000)
    must_not_grow(small, costs(broker, tube))


def test_what_is_counted_grows_when_more_is_read(broker: penstock.Broker) -> None:
    """Checks the measure: listing more tasks takes more steps."""
    tube = broker.tube("t")
    put_up_to(tube, 1_000)
    steps = Steps(broker)
    assert steps.of(lambda: tube.tasks(limit=1_000)) > 10 * steps.of(lambda: tube.tasks(limit=10))
