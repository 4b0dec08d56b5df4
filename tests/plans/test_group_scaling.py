"""The cost of starting, cancelling and ending a group of any size, in steps of SQLite's virtual machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.testing import Clock
from tests.plans.cancelled_group import must_clear_in_steps, plain_cost, takes_after_cancel
from tests.plans.test_scaling import Steps, must_not_grow
from tests.support.quiet_broker import quiet

SMALL, LARGE = 2_000, 100_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[penstock.Broker]:
    with penstock.connect(f"sqlite:///{tmp_path}/queue.db?durability=relaxed", clock=Clock()) as broker:
        quiet(broker)
        yield broker


def costs(broker: penstock.Broker, tube: penstock.Tube, size: int) -> dict[str, int]:
    """The cost of each verb while tasks of a group of that size still follow its start or cancel."""
    steps, tasks, group = Steps(broker), [], tube.group("g")
    group.put_many(range(size))
    group.on_end("end")

    def take() -> None:
        task = tube.take(0)
        assert task is not None
        tasks.append(task)

    found = {"put": steps.of(lambda: group.put("x")), "start": steps.of(group.start)}
    found["take"] = steps.of(take)
    found["ack"] = steps.of(lambda: tasks[0].ack())
    found["cancel"] = steps.of(group.cancel)
    found["put of others"] = steps.of(lambda: tube.put("other"))
    assert group.wait(0) == "cancelled"
    return found


def test_a_group_of_a_hundred_thousand_is_started_and_cancelled_in_bounded_steps(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    small = costs(broker, broker.tube("warm", kind="fifo"), SMALL)
    must_not_grow(small, costs(broker, tube, LARGE))
    stats = tube.stats()
    assert (stats.tasks.total, stats.calls.delete, stats.calls.ack) == (1, LARGE, 1)


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_takes_after_a_cancel_clear_a_step_each(broker: penstock.Broker, kind: str) -> None:
    steps, tube = Steps(broker), broker.tube("t", kind=kind)
    must_clear_in_steps(takes_after_cancel(tube, steps.of))
    must_not_grow({"take": plain_cost(broker.tube("plain", kind=kind), steps.of)}, {"take": plain_cost(tube, steps.of)})
    assert broker.check() == []


def test_an_address_among_a_hundred_thousand_costs_no_more(broker: penstock.Broker) -> None:
    tube, steps = broker.tube("t", kind="fifo"), Steps(broker)

    def round_trip(address: str) -> dict[str, int]:
        found = {"put": steps.of(lambda: tube.put("x", address=address))}
        found["duplicate"] = steps.of(lambda: tube.put("y", address=address, on_duplicate="ignore"))
        found["wait"] = steps.of(lambda: tube.wait("nobody"))
        return found

    small = round_trip("a")
    tube.put_many((n, {"address": f"n{n}"}) for n in range(LARGE // 2))
    must_not_grow(small, round_trip("b"))


def test_a_group_among_ten_thousand_costs_no_more(broker: penstock.Broker) -> None:
    tube, steps = broker.tube("t", kind="fifo"), Steps(broker)

    def round_trip(name: str) -> dict[str, int]:
        group = tube.group(name)
        found = {"put": steps.of(lambda: group.put_many(["x"] * 4)), "start": steps.of(group.start)}
        one, *two, last = tube.take_many(4)
        found["ack"] = steps.of(lambda: one.ack())
        found["ack two"] = steps.of(lambda: tube.ack_many(two))
        found["ack the last"] = steps.of(lambda: last.ack())
        return found

    small = round_trip("a")
    for n in range(10_000):
        tube.put(n, group=f"g{n}")
    must_not_grow(small, round_trip("b"))
