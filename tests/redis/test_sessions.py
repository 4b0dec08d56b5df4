"""Sessions across slots: what a crash between the registry and a tube leaves behind."""

from __future__ import annotations

from uuid import uuid4

import pytest

import penstock
from penstock.core.results import Presence
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from tests.redis.stopped_clock import broker as broker
from tests.redis.stopped_clock import clock as clock
from tests.servers.redis import Redis


@pytest.fixture
def store(broker: penstock.Broker) -> RedisStore:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    return store


def joined(store: RedisStore, ttr: int = 0) -> str:
    handle = uuid4().hex
    store.join(Presence(handle, "host", 1, "locus"), None, ttr)
    return handle


def test_a_lease_that_ends_with_its_session_leaves_its_group_once(
    broker: penstock.Broker, store: RedisStore, clock: Clock
) -> None:
    tube = broker.tube("t", kind="fifottl", ttr=15, max_attempts=1)
    store.open_group(tube.stored, "g", on_failure="continue")
    group = tube.group("g")
    group.put_many(["x", "y"])
    group.start()
    assert store.take([tube.stored], 1, joined(store)).records
    clock.advance(15)
    tube.stats()
    assert store.groups(tube.stored, name="g")[0].left == 1
    assert broker.check() == []


def test_an_end_that_did_not_reach_a_tube_takes_effect_with_the_lapse(
    broker: penstock.Broker, store: RedisStore, clock: Clock
) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put("x")
    handle = joined(store)
    store.take([tube.stored], 1, handle)
    store._registry._call("change_handles", "leave", "*", handle)
    clock.advance(15)
    assert store.advance(tube.stored).effects.readied == {tube.stored.no: 1}


def test_a_take_in_flight_does_not_revive_an_ended_session(broker: penstock.Broker, store: RedisStore) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put("x")
    handle = joined(store)
    found = store._registry.enlist(handle, tube.stored)
    assert found is not None
    store.leave([handle])
    reply = store._runner.on_tube("take", tube.stored, handle, 1, "", "", 1, 1000, 0, *found)
    assert (reply[4], reply[6]) == (0, [])


def test_a_session_that_a_tube_forgot_is_registered_again(broker: penstock.Broker, store: RedisStore) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(["x", "y"])
    handle = joined(store)
    store.take([tube.stored], 1, handle)
    for part in ("lapses", "handles", "ends"):
        key = store._keys.name(tube.stored.no, part)
        store._servers.command(key, "DEL", key)
    assert store.take([tube.stored], 1, handle).alive
    assert broker.check() == []


def test_a_join_whose_answer_was_lost_may_be_made_again(store: RedisStore) -> None:
    presence = Presence(uuid4().hex, "host", 1, "locus")
    assert store.join(presence, None, 0) == store.join(presence, None, 0)
    assert len(store.sessions()) == 1


def test_heartbeats_reach_every_tube(broker: penstock.Broker, store: RedisStore, clock: Clock) -> None:
    handle = joined(store)
    tubes = [broker.tube(name, kind="fifo") for name in ("a", "b")]
    for tube in tubes:
        tube.put("x")
        store.take([tube.stored], 1, handle)
    for _ in range(4):
        clock.advance(5)
        assert store.beat([handle]) == {handle}
    for tube in tubes:
        assert tube.stats().tasks.taken == 1
    clock.advance(15)
    for tube in tubes:
        assert tube.stats().tasks.ready == 1


def test_the_end_of_a_session_is_applied_in_bounded_steps(broker: penstock.Broker, store: RedisStore) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(range(2500))
    handle = joined(store)
    assert len(store.take([tube.stored], 2500, handle).records) == 2500
    effects = store.leave([handle])
    assert effects.readied == {tube.stored.no: 2500}
    assert len(effects.events) == 2500
    assert tube.stats().calls.release == 2500


def test_a_tube_dropped_by_a_crashed_process_is_gone(broker: penstock.Broker, store: RedisStore, server: Redis) -> None:
    tube = broker.tube("t")
    store._runner.on_tag("drop_tube", tube.stored.no, "")
    assert broker.tubes() == []
    assert broker.tube("t", kind="fifo").put("x").id == 1
