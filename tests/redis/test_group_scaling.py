"""The cost of addresses and groups, however large a tube or group is, in Redis commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.testing import Clock
from tests.plans.cancelled_group import plain_cost, takes_after_cancel
from tests.servers.redis import Redis
from tests.support.quiet_broker import quiet

SMALL, LARGE = 4_000, 40_000


def commands(server: Redis, call: Callable[[], object]) -> int:
    """The number of commands of a call, including those of its scripts."""
    server.ask("CONFIG", "RESETSTAT")
    call()
    lines = server.ask("INFO", "commandstats").splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_"))


def costs(server: Redis, tube: penstock.Tube, size: int) -> dict[str, int]:
    """The cost of each verb while tasks of a group of that size still follow its start or cancel."""
    tasks, group = list[penstock.Task](), tube.group("g")
    group.put_many(range(size))
    group.on_end("end")

    def take() -> None:
        task = tube.take(0)
        assert task is not None
        tasks.append(task)

    found = {"put": commands(server, lambda: group.put("x")), "start": commands(server, group.start)}
    found["take"] = commands(server, take)
    found["ack"] = commands(server, lambda: tasks[0].ack())
    found["cancel"] = commands(server, group.cancel)
    found["put of others"] = commands(server, lambda: tube.put("other"))
    assert group.wait(0) == "cancelled"
    return found


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_a_large_group_is_started_and_cancelled_in_bounded_steps(own_server: Redis, kind: str) -> None:
    with penstock.connect(own_server.fresh_url(), clock=Clock()) as broker:
        quiet(broker)
        costs(own_server, broker.tube("warm", kind=kind), 1)
        small = costs(own_server, broker.tube("small", kind=kind), SMALL)
        tube = broker.tube("t", kind=kind)
        large = costs(own_server, tube, LARGE)
        assert all(large[verb] <= small[verb] + 50 for verb in small), (small, large)
        stats = tube.stats()
        assert (stats.tasks.total, stats.calls.delete, stats.calls.ack) == (1, LARGE, 1)


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_takes_after_a_cancel_clear_bounded_steps(own_server: Redis, kind: str) -> None:
    """The cancel removes a thousand tasks, each later take two hundred; a take skips those ahead of it by a few
    commands, a thousand at a time.
    """
    with penstock.connect(own_server.fresh_url(), clock=Clock()) as broker:
        quiet(broker)

        def cost(call: Callable[[], object]) -> int:
            return commands(own_server, call)

        tube = broker.tube("t", kind=kind)
        plain_cost(tube, cost)  # scripts are loaded
        calls = takes_after_cancel(tube, cost, 200)
        assert [call.cleared for call in calls] == [200] * 20 + [0] * 9
        assert [call.found for call in calls] == [0] * 3 + [1] * 26
        assert all(call.cost <= 4 * call.cleared + 100 for call in calls), calls
        assert plain_cost(tube, cost) <= plain_cost(broker.tube("plain", kind=kind), cost) + 5
        assert broker.check() == []


def test_an_address_among_many_costs_no_more(own_server: Redis) -> None:
    with penstock.connect(own_server.fresh_url(), clock=Clock()) as broker:
        quiet(broker)
        tube = broker.tube("t", kind="fifo")

        def round_trip(address: str) -> dict[str, int]:
            found = {"put": commands(own_server, lambda: tube.put("x", address=address))}
            found["duplicate"] = commands(own_server, lambda: tube.put("y", address=address, on_duplicate="ignore"))
            found["wait"] = commands(own_server, lambda: tube.wait("nobody"))
            return found

        round_trip("warm")
        small = round_trip("a")
        tube.put_many((n, {"address": f"n{n}"}) for n in range(LARGE))
        large = round_trip("b")
        assert all(large[verb] <= small[verb] + 5 for verb in small), (small, large)
