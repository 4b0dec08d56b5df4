"""One round trip per verb, whatever the count, if the task or its holder has all that the verb needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

import penstock
from penstock.store.redis.redis_connection import Command, Connections, Reply
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from tests.redis.stopped_clock import broker as broker
from tests.redis.stopped_clock import clock as clock
from tests.servers.redis import Redis, RedisCluster
from tests.support.quiet_broker import quiet


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands in each exchange with a server."""
    seen: list[int] = []
    original = Connections.exchange

    def exchange(link: Connections, commands: Sequence[Command]) -> list[Reply]:
        seen.append(len(commands))
        return original(link, commands)

    monkeypatch.setattr(Connections, "exchange", exchange)
    return seen


VERBS: dict[str, Callable[[penstock.Tube, list[penstock.Task]], object]] = {
    "put": lambda tube, held: tube.put("x"),
    "put_many": lambda tube, held: tube.put_many(range(10_000)),
    "take": lambda tube, held: tube.take(0),
    "take_many": lambda tube, held: tube.take_many(1000),
    "ack": lambda tube, held: held[0].ack(),
    "ack_many": lambda tube, held: tube.ack_many(held),
    "release": lambda tube, held: held[0].release(),
    "touch": lambda tube, held: held[0].touch(1),
    "fail": lambda tube, held: held[0].fail("broken"),
    "bury": lambda tube, held: held[0].bury("odd"),
    "delete": lambda tube, held: tube.delete(held[0].id),
    "kick": lambda tube, held: tube.kick(5),
    "release_all": lambda tube, held: tube.release_all(),
}


# These first apply deadlines, then list the tasks to change.
TRIPS = {"kick": 3, "release_all": 4}
# A put that names a group looks the group up first.
TRIPS_ON_RELATIONS = {"put_many": 2, "kick": 3}
# In kinds without leases, where tasks have names, a delete reads first, too.
NAMED_TRIPS = {"delete": 2, "replace": 2}


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_one_round_trip(broker: penstock.Broker, trips: list[int], verb: str, kind: str) -> None:
    for name in ("warm", "t"):  # the first call may have to load its script
        tube = broker.tube(name, kind=kind, ttr=60)
        tube.put_many([(i, {"utube": i} if "utube" in kind else {}) for i in range(3000)])
        held = tube.take_many(900)
        if verb == "kick":
            held.pop().bury()
        trips.clear()
        VERBS[verb](tube, held)
    assert trips == [1] * TRIPS.get(verb, 1)


def test_many_tubes_are_read_in_two_round_trips(broker: penstock.Broker, trips: list[int]) -> None:
    tubes = [broker.tube(f"t{number}").stored for number in range(50)]
    broker.runtime.store.counters(tubes)  # loads its script
    trips.clear()
    broker.runtime.store.counters(tubes)
    assert trips == [50, 50]


VERBS_ON_RELATIONS: dict[str, Callable[[penstock.Tube, list[penstock.Task]], object]] = {
    "put": lambda tube, held: tube.put("x", address="new"),
    "duplicate": lambda tube, held: tube.put("x", address="1", on_duplicate="ignore"),
    "put_many": lambda tube, held: tube.put_many(range(1000), group="g"),
    "take_many": lambda tube, held: tube.take_many(100),
    "ack": lambda tube, held: held[0].ack("result"),
    "ack_many": lambda tube, held: tube.ack_many(held),
    "open": lambda tube, held: tube.group("h"),
    "kick": lambda tube, held: tube.kick(5),
}


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
@pytest.mark.parametrize("verb", VERBS_ON_RELATIONS)
def test_a_verb_on_tasks_with_addresses_and_groups_is_one_round_trip(
    broker: penstock.Broker, trips: list[int], verb: str, kind: str
) -> None:
    for name in ("warm", "t"):
        tube = broker.tube(name, kind=kind, ttr=60)
        group = tube.group("g")
        group.put_many([(i, {"address": str(i), **({"utube": i} if "utube" in kind else {})}) for i in range(900)])
        group.start()
        held = tube.take_many(200)
        if verb == "kick":
            held.pop().bury()
        trips.clear()
        VERBS_ON_RELATIONS[verb](tube, held)
    assert trips == [1] * TRIPS_ON_RELATIONS.get(verb, 1)


ROUND_VERBS: dict[str, Callable[[penstock.Tube, list[penstock.Task]], object]] = {
    "put": lambda tube, held: tube.put("x", id="new"),
    "put again": lambda tube, held: tube.put("x", id="1"),
    "replace": lambda tube, held: tube.put("x", id="1", on_duplicate="replace"),
    "put_many": lambda tube, held: tube.put_many((n, {"id": f"n{n}"}) for n in range(2000)),
    "take": lambda tube, held: tube.take(0),
    "take_many": lambda tube, held: tube.take_many(1500),
    "delete": lambda tube, held: tube.delete("1"),
}
RELIABLE_VERBS: dict[str, Callable[[penstock.Tube, list[penstock.Task]], object]] = {
    "put": lambda tube, held: tube.put("x"),
    "put_many": lambda tube, held: tube.put_many(range(10_000)),
    "take": lambda tube, held: tube.take(0),
    "take_many": lambda tube, held: tube.take_many(1500),
    "ack": lambda tube, held: tube.ack(held[0].id),
    "ack_many": lambda tube, held: tube.ack_many(held),
    "recover": lambda tube, held: tube.recover(500, 0),
    "inspect": lambda tube, held: tube.inspect(-700, 500, pending=True),
    "delete": lambda tube, held: tube.delete(held[0].id),
}


@pytest.mark.parametrize("verb", ROUND_VERBS)
def test_a_verb_of_a_round_tube_is_one_round_trip(broker: penstock.Broker, trips: list[int], verb: str) -> None:
    for name in ("warm", "t"):
        tube = broker.tube(name, kind="round", period=60)
        tube.put_many((n, {"id": str(n), "ttl": 600}) for n in range(3000))
        held = tube.take_many(900)
        trips.clear()
        ROUND_VERBS[verb](tube, held)
    assert trips == [1] * NAMED_TRIPS.get(verb, 1)


@pytest.mark.parametrize("verb", RELIABLE_VERBS)
def test_a_verb_of_a_reliable_tube_is_one_round_trip(broker: penstock.Broker, trips: list[int], verb: str) -> None:
    for name in ("warm", "t"):
        tube = broker.tube(name, kind="reliable")
        tube.put_many(range(3000))
        held = tube.take_many(900)
        trips.clear()
        RELIABLE_VERBS[verb](tube, held)
    assert trips == [1] * NAMED_TRIPS.get(verb, 1)


def test_a_reply_to_another_tube_is_put_and_taken_out(broker: penstock.Broker, trips: list[int]) -> None:
    tube = broker.tube("t")
    for _ in range(2):
        tube.put_many(range(100), reply_to="replies")
        held = tube.take_many(100)
        trips.clear()
        tube.ack_many(held)
    assert trips == [1, 1, 1]


@pytest.mark.parametrize("linked", [False, True])
def test_a_take_from_several_tubes_looks_no_further_than_the_first_that_has_work(
    broker: penstock.Broker, trips: list[int], linked: bool
) -> None:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    store._outbox._next_scan = float("inf")
    tubes = [broker.tube("a"), broker.tube("b", kind="utube"), broker.tube("c", kind="reliable"), broker.tube("d")]
    names = [tube.name for tube in tubes]
    for tube in tubes:
        if linked and tube.kind != "reliable":
            tube.put("x", address="x")
            task = tube.take(0)
            assert task is not None
            task.ack()
    assert broker.take(names, 0) is None  # each tube registers the session
    for place, tube in reversed(list(enumerate(tubes, 1))):
        tube.put(tube.name)
        trips.clear()
        task = broker.take(names, 0)
        assert trips == [1] * place
        assert task is not None
        assert task.data == tube.name


def test_shards_on_one_node_share_a_call(cluster: RedisCluster, trips: list[int]) -> None:
    with penstock.connect(cluster.fresh_url(), clock=Clock()) as broker:
        quiet(broker)
        tube = broker.tube("t", shards=12)
        for n in range(12):
            tube.put_many([n])
        tube.stats()  # the first call on a node loads its script
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        store._outbox._next_scan = float("inf")  # no search for abandoned replies in between
        trips.clear()
        assert tube.stats().tasks.ready == 12
        assert sum(trips) == 24
        assert len(trips) == 2 * 3  # apply what is due, then read the counters: once on each node
        trips.clear()
        tube.put_many(range(100))
        assert trips == [1]


def test_an_idle_taker_asks_only_at_the_scan(server: Redis) -> None:
    with penstock.connect(server.fresh_url()) as broker:
        tube = broker.tube("t")
        before, began = _scripts(server), time.monotonic()
        assert tube.take(2.5) is None
        scans = int(time.monotonic() - began)
        assert _scripts(server) - before <= 5 * scans + 20  # to register, to unregister, and to load scripts


def _scripts(server: Redis) -> int:
    lines = server.ask("INFO", "commandstats").splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_evalsha"))
