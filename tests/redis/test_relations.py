"""Addresses, outcomes, replies and groups where Redis's way to store them could be visible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.store.redis.redis_store import SCHEMA, RedisStore
from penstock.testing import Clock
from tests.redis.stopped_clock import clock as clock
from tests.servers.redis import Redis
from tests.support.inspection import tasks
from tests.support.verbs import drain, take


@pytest.fixture
def broker(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    with penstock.connect(url, clock=clock) as broker:
        yield broker
        assert broker.check() == []


def test_truncate_counts_no_work_of_a_cancelled_group(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    group = tube.group("g")
    group.put_many(range(2_500))
    group.on_cancel("cancelled")
    tube.put("plain")
    group.cancel()  # only one step of them
    assert tube.truncate() == 1
    assert group.wait(0) == "cancelled"
    assert drain(tube) == ["cancelled"]


def test_a_plain_tube_notices_its_first_address_from_another_process(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["x", "y"])
    tube.ack_many(tube.take_many(1))
    with penstock.connect(url) as other:
        other.tube("t").put("z", address="a", reply_to="replies", pri=0)
    held = tube.take_many(2)
    assert [task.data for task in held] == ["y", "z"]
    held[1].ack("r")
    assert tube.wait("a", 0).result == "r"


def test_a_server_at_its_memory_limit_ends_tasks_with_outcomes_replies_and_groups(own_server: Redis) -> None:
    with penstock.connect(own_server.fresh_url()) as broker:
        tube, replies = broker.tube("t", ttr=60), broker.tube("replies")
        group = tube.group("g")
        group.put("x", address="a", reply_to="replies")
        group.on_end("end")
        tube.group("h").put_many([b"x" * 100] * 2000)
        group.start()
        held = take(tube)
        own_server.ask("CONFIG", "SET", "maxmemory", "1mb")
        for options in ({"address": "b"}, {"group": "g"}, {"reply_to": "replies"}):
            with pytest.raises(penstock.StoreFull, match="maxmemory"):
                tube.put("y", **options)  # type: ignore[arg-type]
        held.ack("r")
        tube.group("h").cancel()
        assert (tube.wait("a", 0).result, group.wait(0)) == ("r", "done")
        assert drain(tube) == ["end"]
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        assert drain(replies) == [{"id": 1, "address": "a", "status": "done", "result": "r"}]
        assert tasks(tube)["done"] == 2002
        assert broker.check() == []


@pytest.mark.parametrize(("schema", "remedy"), [(SCHEMA - 1, "import them here"), (SCHEMA + 1, "upgrade penstock")])
def test_another_schema_is_refused_and_left_alone(url: str, broker: penstock.Broker, schema: int, remedy: str) -> None:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    key = store._keys.name("tubes", "store")
    store._servers.command(key, "HSET", key, "schema", schema)
    with pytest.raises(penstock.SchemaMismatch, match=remedy):
        penstock.connect(url)
    assert store._servers.command(key, "HGET", key, "schema") == b"%d" % schema
