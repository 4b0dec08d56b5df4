"""A real cluster: slots that move and nodes that fail, under load."""

from __future__ import annotations

import threading
import time

import pytest

import penstock
from penstock.store.redis.redis_store import RedisStore
from penstock.store.redis.servers import Cluster
from penstock.store.sql.server import Pool
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis, RedisCluster
from tests.support.threads import until


class Load:
    """A thread that puts, takes and acks in one tube until stopped."""

    def __init__(self, tube: penstock.Tube) -> None:
        self.tube = tube
        self.put: list[int] = []
        self.acked: list[int] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for_more(self) -> None:
        """Wait until it has put more."""
        before = len(self.put)
        until(lambda: len(self.put) > before or self.errors != [])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.002):
                self.put += [task.id for task in self.tube.put_many(["x"] * 5)]
                tasks = self.tube.take_many(4 if len(self.put) < 200 else 6)
                good = self.tube.ack_many(tasks)
                self.acked += [task.id for task, done in zip(tasks, good, strict=True) if done]
        except BaseException as error:
            self.errors.append(error)


def move_slot(cluster: RedisCluster, key: str, pause: float) -> None:
    """Move the slot of a key to the next node key by key, so that calls meet a half-moved slot."""
    slot = cluster.ask("CLUSTER", "KEYSLOT", key)
    nodes: list[Redis] = [cluster, *cluster.others]
    source = next(node for node in nodes if "MOVED" not in node.ask("EXISTS", key))
    target = nodes[(nodes.index(source) + 1) % len(nodes)]
    ids = {node: node.ask("CLUSTER", "MYID") for node in nodes}
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, "1").split():
        source.ask("MIGRATE", "127.0.0.1", str(target.port), keys[0], "0", "60000")
        time.sleep(pause)
    for node in (target, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    assert "MOVED" in source.ask("EXISTS", key)


def test_slots_that_move_lose_nothing(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tubes' slots and the sessions' move from node to node while tasks are put, taken and acked."""
    monkeypatch.setattr("penstock.store.redis.servers.TRIES", 100)  # however long a busy machine takes for a move
    monkeypatch.setattr("penstock.store.redis.servers.PATIENCE_SECONDS", 60.0)
    with penstock.connect(cluster.fresh_url()) as broker:
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        sharded = broker.tube("c", shards=3)
        shard = store._tubes.shards(sharded.stored)[1].no
        tubes = [broker.tube("a", kind="utube"), broker.tube("b", kind="fifottl", ttl=600), sharded]
        loads = [Load(tube) for tube in tubes]
        for tag in (tubes[0].stored.no, tubes[1].stored.no, "sessions", "tubes", shard, tubes[0].stored.no):
            move_slot(cluster, store._keys.name(tag, "meta").decode(), 0.01)
            for load in loads:
                load.wait_for_more()
        for load in loads:
            load.stop()
            assert load.errors == []
            left = {task.id for task in load.tube.tasks(limit=10_000)}
            assert len(load.put) == len(set(load.put)) > 0
            assert set(load.put) == set(load.acked) | left
            assert not set(load.acked) & left
        assert broker.check() == []


def test_a_restarted_node_is_found_again(cluster: RedisCluster) -> None:
    with penstock.connect(cluster.fresh_url()) as broker:
        node = cluster.others[0]
        node.ask("CONFIG", "SET", "appendfsync", "always")
        tubes = [broker.tube(f"t{i}") for i in range(6)]
        for tube in tubes:
            tube.put("x")
        for tube in tubes:
            tube.put("y")
        node.kill()
        node.start()
        cluster.await_answer()
        for tube in tubes:
            tube.put("z")
            assert [task.data for task in tube.take_many(3)] == ["x", "y", "z"]


def test_nodes_that_do_not_report_their_host_are_found(cluster: RedisCluster) -> None:
    """As behind one address with one port per node: all nodes have the host that was asked."""
    nodes: list[Redis] = [cluster, *cluster.others]
    try:
        for node in nodes:
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
        with penstock.connect(cluster.fresh_url()) as broker:
            for name in "abcd":
                broker.tube(name).put(name)
            assert [broker.tube(name).take(0).data for name in "abcd"] == list("abcd")  # type: ignore[union-attr]
    finally:
        for node in nodes:
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


def test_another_node_gives_the_slots_if_one_disconnects(cluster: RedisCluster) -> None:
    proxy = Proxy(cluster.port)
    url = cluster.fresh_url().replace("redis+cluster://", f"redis+cluster://127.0.0.1:{proxy.port},")
    try:
        with penstock.connect(url) as broker:
            tube, store = broker.tube("t"), broker.runtime.store
            assert isinstance(store, RedisStore)
            assert isinstance(store._servers, Cluster)
            store._servers._slots.clear()  # as after a failover
            proxy.losses = 1
            tube.put("x")
            assert proxy.lost_answers == 1
            assert len(tube) == 1
    finally:
        proxy.close()


def test_a_broker_is_closed_while_a_call_meets_another_node(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(cluster.fresh_url()) as broker:
        broker.tube("t").put("x")
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        servers = store._servers
        assert isinstance(servers, Cluster)
        first = next(iter(servers._nodes.values()))

        def close() -> None:
            servers._node(("127.0.0.1", 1))  # as the call of another thread does
            Pool.close(first.pool)

        monkeypatch.setattr(first.pool, "close", close)
        broker.close()
        assert first.pool._closed
