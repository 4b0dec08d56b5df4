"""The cost of round and reliable tubes as they grow, in steps of SQLite's virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.testing import Clock
from tests.plans.test_scaling import Steps, must_not_grow
from tests.support.quiet_broker import quiet


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(tmp_path: Path, clock: Clock) -> Iterator[penstock.Broker]:
    with penstock.connect(f"sqlite:///{tmp_path}/queue.db?durability=relaxed", clock=clock) as broker:
        quiet(broker)
        yield broker


def costs(broker: penstock.Broker, verbs: dict[str, Callable[[], object]]) -> dict[str, int]:
    """The median of a few rounds of all verbs."""
    steps = Steps(broker)
    rounds: dict[str, list[int]] = {name: [] for name in verbs}
    for _ in range(5):
        for name, verb in verbs.items():
            rounds[name].append(steps.of(verb))
    return {name: sorted(found)[2] for name, found in rounds.items()}


def test_a_hundred_times_the_elements_cost_no_more(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="round", period=1)

    def measured(count: int) -> dict[str, int]:
        """Half of the elements were never handed out, the others a moment ago."""
        before = len(tube)
        tube.put_many((n, {"id": f"{n}", "ttl": 10_000}) for n in range(before, count))
        tube.take_many((count - before) // 2)
        return costs(
            broker,
            {
                "put": lambda: tube.put("x", id=f"new{len(tube)}"),
                "put again": lambda: tube.put("x", id="0"),
                "take": lambda: tube.take(0),
                "peek": lambda: tube.peek("1"),
                "stats": tube.stats,
            },
        )

    must_not_grow(measured(1_000), measured(100_000))


def test_nothing_to_hand_out_costs_no_more_however_much_waits_for_its_period(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="round", period=100)

    def measured(count: int) -> dict[str, int]:
        tube.put_many((n, {"id": f"{n}"}) for n in range(len(tube), count))
        while tube.take_many(10_000):
            pass
        return costs(broker, {"take": lambda: tube.take(0)})

    must_not_grow(measured(100), measured(30_000))


def test_a_hundred_times_the_messages_cost_no_more(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="reliable")

    def measured(count: int) -> dict[str, int]:
        """Half of the messages are delivered."""
        before = len(tube)
        tube.put_many(range(before, count))
        tube.take_many((count - before) // 2)
        return costs(
            broker,
            {
                "put": lambda: tube.put("x"),
                "take": lambda: tube.take(0),
                "ack": lambda: tube.ack_many(tube.inspect(0, 1, pending=True)),
                "recover": lambda: tube.recover(1, 0),
                "recover nothing": lambda: tube.recover(10, 10_000),
                "inspect": lambda: tube.inspect(0, 2),
                "inspect the end": lambda: (tube.inspect(-2, 2), tube.inspect(-2, 2, pending=True)),
                "stats": tube.stats,
            },
        )

    must_not_grow(measured(1_000), measured(100_000))
