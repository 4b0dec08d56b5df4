"""The server's settings: restarts, memory limits, warnings, and the durability that penstock reports."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest

import penstock
from penstock.store.open import open_store
from penstock.store.redis.durability import durability_of
from penstock.store.redis.location import locate
from penstock.store.redis.redis_store import SCHEMA, RedisStore
from penstock.store.redis.servers import connect_servers
from penstock.testing import Clock
from tests.redis.closed_connections import hung_up
from tests.servers.redis import Redis, RedisCluster


def test_a_killed_server_restarts_with_everything(own_server: Redis) -> None:
    url = own_server.fresh_url()
    own_server.ask("CONFIG", "SET", "appendfsync", "always")
    with penstock.connect(url, clock=Clock()) as broker:  # no session lapses, however long the start takes
        tube = broker.tube("t", kind="utubettl", ttr=60, ttl=600)
        tube.put_many([(i, {"utube": i % 3, "pri": i % 2}) for i in range(100)])
        held = tube.take_many(3)
        tube.bury(50, "odd")
        before = (tube.stats(), [task.status for task in tube.tasks()])
        own_server.kill()
        own_server.start()
        assert (tube.stats(), [task.status for task in tube.tasks()]) == before
        assert tube.ack_many(held) == [True] * 3
        assert tube.put("next").id == 101
        assert broker.check() == []


def test_calls_fail_while_the_server_is_down_and_work_afterwards(
    own_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.redis.servers.TRIES", 2)
    own_server.ask("CONFIG", "SET", "appendfsync", "always")  # otherwise the kill may lose the tube
    url = own_server.fresh_url()
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        tube.put("x")
        own_server.kill()
        hung_up(broker)
        with pytest.raises(penstock.StoreUnavailable, match="127.0.0.1"):
            tube.put("y")
        with pytest.raises(penstock.StoreUnavailable):
            penstock.connect(url)
        own_server.start()
        assert tube.put("z").data == "z"


def test_a_full_server_refuses_puts_and_frees_by_everything_else(own_server: Redis) -> None:
    with penstock.connect(own_server.fresh_url()) as broker:
        tube = broker.tube("t", ttr=60)
        tube.put_many([b"x" * 100] * 2000)
        held = tube.take_many(10)
        own_server.ask("CONFIG", "SET", "maxmemory", "1mb")
        for _ in range(2):
            with pytest.raises(penstock.StoreFull, match="maxmemory"):
                tube.put("x")
        held[0].ack()
        held[1].release()
        held[2].bury("odd")
        held[3].touch(1)
        tube.delete(11)
        assert tube.kick() == 1
        with penstock.connect(f"{own_server.url}?prefix={broker.runtime.store._keys.prefix}") as other:  # type: ignore[attr-defined]
            task = other.tube("t").take(0)
            assert task is not None
            task.ack()
        assert tube.release_all() == 7
        assert len(tube.take_many(2000)) == 1997
        tube.truncate()
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        assert tube.put("x").data == "x"
        assert broker.check() == []


@pytest.mark.parametrize(
    ("setting", "value", "warning"),
    [
        ("maxmemory-policy", "allkeys-lru", "set it to noeviction"),
        ("appendonly", "no", "set appendonly yes"),
    ],
)
def test_settings_that_lose_tasks_are_warned_of(
    own_server: Redis, caplog: pytest.LogCaptureFixture, setting: str, value: str, warning: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock"):
        penstock.connect(own_server.fresh_url()).close()
        assert caplog.text == ""
        own_server.ask("CONFIG", "SET", setting, value)
        penstock.connect(own_server.fresh_url()).close()
    assert warning in caplog.text


def test_the_store_describes_itself(broker: penstock.Broker, server: Redis) -> None:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    assert "last second" in store.describe().durability
    seen = store.describe()
    assert (seen.store, seen.schema, seen.advice) == (server.product, SCHEMA, [])


@pytest.mark.parametrize(
    ("path", "password", "words"),
    [
        ("0", "", "refuses the user or the password of its URL"),
        ("0", ":wrong@", "refuses the user or the password of its URL"),
        ("99", ":right@", "has no such database"),
    ],
)
def test_the_error_of_a_refused_url_names_its_fault(own_server: Redis, path: str, password: str, words: str) -> None:
    own_server.ask("CONFIG", "SET", "requirepass", "right")
    with pytest.raises(penstock.StoreUnavailable, match=words):
        penstock.connect(f"redis://{password}127.0.0.1:{own_server.port}/{path}")


def test_a_pipeline_without_a_password_is_refused_as_well(own_server: Redis) -> None:
    own_server.ask("CONFIG", "SET", "requirepass", "right")
    servers = connect_servers(locate(f"redis://127.0.0.1:{own_server.port}"))
    refused = pytest.raises(penstock.StoreUnavailable, match="refuses the user or the password of its URL")
    with closing(servers), refused:
        servers.command_all([(b"key", (b"GET", b"key"))])


def advice(url: str) -> list[str]:
    with closing(open_store(url)) as store:
        return list(store.describe().advice)


def test_snapshots_alone_cause_a_warning(own_server: Redis) -> None:
    own_server.ask("CONFIG", "SET", "appendonly", "no")
    own_server.ask("CONFIG", "SET", "save", "3600 1")
    [advised] = advice(own_server.fresh_url())
    assert "a crash loses every task since the last one" in advised


def test_a_cluster_node_is_refused_as_a_single_server(cluster: RedisCluster) -> None:
    advised = advice(cluster.url.replace("redis+cluster", "redis"))
    assert ["use a redis+cluster:// URL" in line for line in advised] == [True]


def test_the_settings_of_every_cluster_node_are_read(cluster: RedisCluster) -> None:
    careless, lost = cluster.others
    url = cluster.fresh_url()
    with closing(open_store(url)) as store:
        careless.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        lost.kill()
        seen = store.describe()
        careless.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        lost.start()
        cluster.await_answer()
    advised = {line.split(": ")[0]: line for line in seen.advice}
    assert "maxmemory-policy is allkeys-lru" in advised[f"node 127.0.0.1:{careless.port}"]
    assert "cannot be reached now" in advised[f"node 127.0.0.1:{lost.port}"]
    assert (len(advised), seen.store) == (2, f"{cluster.product} Cluster")
    assert f"node 127.0.0.1:{careless.port}: none" in seen.durability
    assert advice(url) == []


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"aof_enabled": "1", "appendfsync": "always"}, "on disk"),
        ({"aof_enabled": "1", "appendfsync": "no"}, "was written to disk"),
        ({"aof_enabled": "1"}, "last second"),
        ({"aof_enabled": "0", "save": "3600 1"}, "snapshot"),
        ({"aof_enabled": "0", "save": ""}, "loses everything"),
        ({"aof_enabled": "1", "maxmemory_policy": "allkeys-lru"}, "evict tasks"),
    ],
)
def test_the_promise_follows_from_the_settings(facts: dict[str, str], word: str) -> None:
    assert word in durability_of(facts)
