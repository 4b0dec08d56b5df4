"""The cost of round and reliable tubes of any size, in Redis commands and CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable

import penstock
from penstock.testing import Clock
from tests.redis.test_group_scaling import commands
from tests.servers.redis import Redis
from tests.support.quiet_broker import quiet

SMALL, LARGE = 1_000, 50_000
# A verb on a hundred tasks takes about a millisecond; one that reads or moves fifty thousand takes fifty.
LONGEST_MS = 20
# What a server needs for itself in a second: about ten checks of its tables, a millisecond each at most.
HOUSEKEEPING_MS = 15
Verbs = dict[str, Callable[[], object]]


def costs(server: Redis, verbs: Verbs) -> dict[str, int]:
    """The number of commands of each verb; none may block the server for long."""
    found = {}
    for name, verb in verbs.items():
        before, began = cpu_ms(server), time.monotonic()
        found[name] = commands(server, verb)
        took = cpu_ms(server) - before - HOUSEKEEPING_MS * (time.monotonic() - began)
        assert took < LONGEST_MS or took < step_for_each_ms(server), name
    return found


def step_for_each_ms(server: Redis) -> float:
    """The time of the smallest step for fifty thousand items: more on a machine that is slow now."""
    before = cpu_ms(server)
    server.ask("EVAL", f"for _ = 1, {LARGE} do redis.call('EXISTS', 'x') end", "0")
    return cpu_ms(server) - before


def cpu_ms(server: Redis) -> float:
    """CPU time of its main thread, which unlike a clock does not count the time of other processes."""
    info = dict(line.split(":") for line in server.ask("INFO", "cpu").splitlines() if ":" in line)
    return 1000 * (float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"]))


def must_not_grow(small: dict[str, int], large: dict[str, int]) -> None:
    assert all(large[verb] <= small[verb] + 5 for verb in small), (small, large)


def round_costs(server: Redis, tube: penstock.Tube, count: int) -> dict[str, int]:
    """Half of the elements were never handed out, the others a moment ago."""
    tube.put_many((n, {"id": f"{n}", "ttl": 10_000}) for n in range(count))
    assert len(tube.take_many(count // 2)) == count // 2
    return costs(
        server,
        {
            "put": lambda: tube.put("x", id="new"),
            "put again": lambda: tube.put("x", id="0"),
            "take": lambda: tube.take(0),
            "take_many": lambda: tube.take_many(100),
            "peek": lambda: tube.peek("1"),
            "delete": lambda: tube.delete("1"),
        },
    )


def test_fifty_times_the_elements_cost_no_more(own_server: Redis) -> None:
    with penstock.connect(own_server.fresh_url(), clock=Clock()) as broker:
        quiet(broker)
        tubes = [broker.tube(name, kind="round", period=1000) for name in ("warm", "small", "large")]
        round_costs(own_server, tubes[0], SMALL)
        must_not_grow(round_costs(own_server, tubes[1], SMALL), round_costs(own_server, tubes[2], LARGE))


def test_nothing_to_hand_out_costs_no_more_however_much_waits_for_its_period(own_server: Redis) -> None:
    with penstock.connect(own_server.fresh_url(), clock=Clock()) as broker:
        quiet(broker)

        def measured(name: str, count: int) -> dict[str, int]:
            tube = broker.tube(name, kind="round", period=1000)
            tube.put_many((n, {"id": f"{n}"}) for n in range(count))
            tube.take_many(count)
            return costs(own_server, {"take": lambda: tube.take(0)})

        measured("warm", 1)
        must_not_grow(measured("small", 100), measured("large", LARGE))


def reliable_costs(server: Redis, tube: penstock.Tube, count: int) -> dict[str, int]:
    """`count` messages are delivered, and as many are not."""
    tube.put_many(range(2 * count))
    ids = [task.id for task in tube.take_many(count)]
    assert len(ids) == count
    return costs(
        server,
        {
            "put": lambda: tube.put("x"),
            "take_many": lambda: tube.take_many(100),
            "recover": lambda: tube.recover(100, 0),
            "recover nothing": lambda: tube.recover(100, 1000),
            "inspect": lambda: tube.inspect(count // 2, 100),
            "inspect delivered": lambda: tube.inspect(-count // 2, 100, pending=True),
            "peek": lambda: tube.peek(ids[-1]),
            "ack": lambda: tube.ack_many(ids[:100]),
        },
    )


def test_fifty_times_the_delivered_messages_cost_no_more(own_server: Redis) -> None:
    with penstock.connect(own_server.fresh_url(), clock=Clock()) as broker:
        quiet(broker)
        tubes = [broker.tube(name, kind="reliable") for name in ("warm", "small", "large")]
        reliable_costs(own_server, tubes[0], SMALL)
        must_not_grow(reliable_costs(own_server, tubes[1], SMALL), reliable_costs(own_server, tubes[2], LARGE))


def test_a_take_behind_more_expired_elements_than_a_step_hands_out_one(url: str) -> None:
    clock = Clock()
    with penstock.connect(url, clock=clock) as broker:
        tube = broker.tube("t", kind="round", period=60)
        tube.put_many((n, {"id": f"old{n}", "ttl": 1}) for n in range(2_450))
        tube.put_many((n, {"id": f"new{n}"}) for n in range(5))
        clock.advance(1)
        assert [task.id for task in tube.take_many(1)] == ["new0"]
        assert [task.id for task in tube.take_many(9)] == ["new1", "new2", "new3", "new4"]
