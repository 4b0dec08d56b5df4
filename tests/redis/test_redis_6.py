"""Servers before 7 do not know script flags: the same store with the scripts they get.

Redis 7 runs such scripts by the rules of 6.2, also at the memory limit.
"""

from __future__ import annotations

import pytest

import penstock
from penstock.store.redis import durability
from penstock.store.redis.redis_store import RedisStore
from tests.redis import test_relations, test_settings
from tests.servers.redis import Redis
from tests.support.verbs import drain


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "is_modern", lambda facts: False)


def test_old_servers_are_recognised_by_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not durability.is_modern({"redis_version": "6.2.14"})
    assert durability.is_modern({"redis_version": "7.2.4", "valkey_version": "8.0.1"})


def test_elements_and_messages_are_handed_out(server: Redis) -> None:
    with penstock.connect(server.fresh_url()) as broker:
        feeds, queue = broker.tube("feeds", kind="round", period=60), broker.tube("queue", kind="reliable")
        feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b", "ttl": 60})])
        assert [task.id for task in feeds.take_many(9)] == ["a", "b"]
        ids = [task.id for task in queue.put_many(["one", "two"])]
        assert [task.id for task in queue.take_many(9)] == ids
        assert [task.attempts for task in queue.recover(1, 0)] == [2]
        assert [task.id for task in queue.inspect(0, 9, pending=True)] == ids[::-1]
        assert queue.ack_many(ids) == ids
        assert broker.check() == []


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl"])
def test_tasks_are_put_taken_and_acked(server: Redis, kind: str) -> None:
    with penstock.connect(server.fresh_url()) as broker:
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        assert not store._runner.modern
        tube = broker.tube("t", kind=kind)
        tube.put_many(["a", "b", "c"])
        first = tube.take(0)
        assert first is not None
        first.release()
        while task := tube.take(0):
            task.ack()
        assert tube.stats().tasks.done == 3
        assert broker.check() == []


@pytest.mark.parametrize("kind", ["fifo", "utubettl"])
def test_addresses_replies_and_groups(server: Redis, kind: str) -> None:
    with penstock.connect(server.fresh_url()) as broker:
        tube = broker.tube("t", kind=kind)
        group = tube.group("g")
        group.put_many([("x", {"address": "a", "reply_to": "replies"}), "y"])
        group.on_end("end")
        tube.put("z", reply_to="replies")
        tube.put("new", address="a", on_duplicate="replace")
        group.start()
        assert drain(tube) == ["new", "y", "z", "end"]
        assert (tube.wait("a", 0).status, group.wait(0)) == ("done", "done")
        assert len(drain(broker.tube("replies"))) == 2
        tube.put("gone", reply_to="replies")
        tube.drop()
        assert len(drain(broker.tube("replies"))) == 1
        assert broker.check() == []


def test_a_full_server_refuses_puts_and_frees_by_everything_else(own_server: Redis) -> None:
    test_settings.test_a_full_server_refuses_puts_and_frees_by_everything_else(own_server)


def test_a_full_server_ends_tasks_with_links(own_server: Redis) -> None:
    test_relations.test_a_server_at_its_memory_limit_ends_tasks_with_outcomes_replies_and_groups(own_server)
