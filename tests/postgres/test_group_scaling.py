"""The cost of starting, cancelling and ending a group of any size, and of one address among many, in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import penstock
from tests.plans.cancelled_group import must_clear_in_steps, plain_cost, takes_after_cancel
from tests.plans.test_scaling import must_not_grow
from tests.postgres.plans import PlanLogger, buffers, vacuum
from tests.postgres.plans import broker as broker

pytestmark = pytest.mark.timeout(600)

SMALL, LARGE = 2_000, 20_000


@pytest.fixture
def pages(url: str, broker: penstock.Broker) -> Iterator[Callable[[Callable[[], object]], int]]:
    """Counts the pages that a call touches: its outermost statement includes those of all inner ones."""
    plan_logger = PlanLogger(url, broker)

    def count(call: Callable[[], object]) -> int:
        with plan_logger.listening() as plans:
            call()
        return max(map(buffers, plans))

    yield count
    plan_logger.db.close()


def costs(tube: penstock.Tube, size: int, pages: Callable[[Callable[[], object]], int]) -> dict[str, int]:
    """The cost of each verb while tasks of a group of that size still follow its start or cancel."""
    tasks, group = [], tube.group("g")
    group.put_many(range(size))
    group.on_end("end")

    def take() -> None:
        task = tube.take(0)
        assert task is not None
        tasks.append(task)

    tube.put("first")
    take()  # creates the session
    found = {"put": pages(lambda: group.put("x")), "start": pages(group.start), "take": pages(take)}
    found["ack"] = pages(lambda: tasks[-1].ack())
    found["cancel"] = pages(group.cancel)
    found["put of others"] = pages(lambda: tube.put("other"))
    assert group.wait(0) == "cancelled"
    return found


def test_a_large_group_is_started_and_cancelled_in_bounded_steps(
    broker: penstock.Broker, pages: Callable[[Callable[[], object]], int]
) -> None:
    costs(broker.tube("warm", kind="fifo"), SMALL, pages)  # fills the connection's caches
    small = costs(broker.tube("small", kind="fifo"), SMALL, pages)
    tube = broker.tube("t", kind="fifo")
    must_not_grow(small, costs(tube, LARGE, pages))
    stats = tube.stats()
    assert (stats.tasks.total, stats.calls.delete, stats.calls.ack) == (2, LARGE, 1)


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_takes_after_a_cancel_clear_a_step_each(
    broker: penstock.Broker, url: str, pages: Callable[[Callable[[], object]], int], kind: str
) -> None:
    tube = broker.tube("t", kind=kind)
    must_clear_in_steps(takes_after_cancel(tube, pages))
    vacuum(url)
    must_not_grow({"take": plain_cost(broker.tube("plain", kind=kind), pages)}, {"take": plain_cost(tube, pages)})
    assert broker.check() == []


def test_an_address_among_many_costs_no_more(
    broker: penstock.Broker, pages: Callable[[Callable[[], object]], int]
) -> None:
    tube = broker.tube("t", kind="fifo")

    def round_trip(address: str) -> dict[str, int]:
        found = {"put": pages(lambda: tube.put("x", address=address, group=address))}
        found["duplicate"] = pages(lambda: tube.put("y", address=address, on_duplicate="ignore"))
        found["replace"] = pages(lambda: tube.put("y", address=address, on_duplicate="replace"))
        found["wait"] = pages(lambda: tube.wait("nobody"))
        found["end"] = pages(lambda: tube.delete(tube.put("z", address=f"{address} again").id))
        return found

    def fill(first: int, last: int) -> None:
        tube.put_many((n, {"address": f"n{n}", "group": f"g{n % 1000}"}) for n in range(first, last))

    round_trip("warm")
    fill(0, SMALL)
    small = round_trip("a")
    fill(SMALL, LARGE)
    must_not_grow(small, round_trip("b"))
