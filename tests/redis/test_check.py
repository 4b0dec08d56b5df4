"""check: damage done without penstock is found, named and repaired."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.store.redis.encoding import task_key
from penstock.store.redis.redis_store import RedisStore
from tests.redis.stopped_clock import broker as broker  # a heartbeat would repair some of the damage
from tests.redis.stopped_clock import clock as clock
from tests.support.verbs import drain

Damage = Callable[[RedisStore, int], object]


def run(store: RedisStore, no: int, command: str, part: str, *words: str | bytes | int) -> object:
    """Run a command on one key of a tube."""
    key = store._keys.name(no, part)
    return store._servers.command(key, command, key, *words)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "not ready": (lambda store, no: run(store, no, "ZREM", "ready", task_key(4)), "ready index"),
    "stray ready": (lambda store, no: run(store, no, "ZADD", "ready", 0, task_key(77)), "ready index"),
    "not buried": (lambda store, no: run(store, no, "DEL", "buried"), "buried index"),
    "no timer": (lambda store, no: run(store, no, "DEL", "due"), "due index"),
    "wrong timer": (lambda store, no: run(store, no, "ZADD", "due", 5, task_key(5)), "due index"),
    "not taken": (lambda store, no: run(store, no, "DEL", "taken"), "taken index"),
    "counter": (lambda store, no: run(store, no, "HINCRBY", "meta", "taken", 3), "counter taken"),
    "total": (lambda store, no: run(store, no, "HINCRBY", "meta", "ack", -1), "counter done"),
    "no session": (lambda store, no: run(store, no, "DEL", "ends"), "no live session holds it"),
    "waits": (lambda store, no: run(store, no, "HSET", "waits", "nobody", 1), "nobody"),
}
MICRO_QUEUE_DAMAGES: dict[str, tuple[Damage, str]] = {
    "micro_queue numbers": (lambda store, no: run(store, no, "DEL", "micro_queues"), "micro-queue"),
    "micro_queue index": (lambda store, no: run(store, no, "DEL", "queue"), "queue index"),
    "head lost": (lambda store, no: run(store, no, "DEL", "ready"), "ready index"),
}


def filled(broker: penstock.Broker, kind: str, **options: bool) -> penstock.Tube:
    tube = broker.tube("t", kind=kind, **options)  # type: ignore[arg-type]
    per_utube = "utube" in kind
    tube.put_many([(i, {"ttl": 500, "ttr": 500, **({"utube": i % 2} if per_utube else {})}) for i in range(8)])
    tube.take_many(1)
    tube.bury(3)
    tube.put("late", delay=100)
    return tube


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_repaired(broker: penstock.Broker, damage: str) -> None:
    tube = filled(broker, "fifottl")
    do, what = DAMAGES[damage]
    _damage(broker, tube, do, what)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("damage", [*DAMAGES, *MICRO_QUEUE_DAMAGES])
def test_damage_of_micro_queues_is_found_and_repaired(broker: penstock.Broker, damage: str, fair: bool) -> None:
    if damage in ("not ready", "stray ready"):
        damage = "head lost"
    tube = filled(broker, "utubettl", fair=fair)
    do, what = {**DAMAGES, **MICRO_QUEUE_DAMAGES}[damage]
    _damage(broker, tube, do, what)


def _damage(broker: penstock.Broker, tube: penstock.Tube, do: Damage, what: str) -> None:
    assert broker.check() == []
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    do(store, tube.stored.no)
    found = broker.check()
    assert found
    assert any(what in finding.what for finding in found), found
    broker.check(repair=True)
    assert broker.check() == []
    stats = tube.stats().tasks
    assert (stats.total, stats.buried, stats.delayed) == (9, 1, 1)
    tube.release_all()
    taken = 0
    while task := tube.take(0):
        task.ack()
        taken += 1
    assert taken == 7


def test_a_task_that_nothing_makes_ready(broker: penstock.Broker) -> None:
    tube, store = broker.tube("t"), broker.runtime.store
    tube.put_many(["a", "b"])
    assert isinstance(store, RedisStore)
    stored = run(store, tube.stored.no, "HGET", "tasks", task_key(1))
    assert isinstance(stored, bytes)
    run(store, tube.stored.no, "HSET", "tasks", task_key(1), b"q" + stored[1:])
    assert (1, "in state q, which nothing ends") in [(found.id, found.what) for found in broker.check()]
    broker.check(repair=True)
    assert broker.check() == []
    assert drain(tube) == ["a", "b"]
