"""check finds what must not exist in tubes of unleased kinds, and repair corrects it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

import penstock
from penstock.store.redis.encoding import decode, encode, task_key
from penstock.store.redis.redis_store import RedisStore
from tests.redis.test_check import run

FEEDS, QUEUE = 1, 2
FIRST, SECOND = task_key(1), task_key(2)


def rewrite(store: RedisStore, no: int, key: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change the stored bytes of a task and nothing else."""
    stored = run(store, no, "HGET", "tasks", key)
    assert isinstance(stored, bytes)
    run(store, no, "HSET", "tasks", key, change(stored))


def changed(**fields: object) -> Callable[[bytes], bytes]:
    """The same task with other fields."""
    return lambda stored: encode(replace(decode(1, stored), **fields))


# name -> what damages the store, and what is found
DAMAGE: dict[str, tuple[Callable[[RedisStore], object], str]] = {
    "an element out of its place": (
        lambda store: rewrite(store, FEEDS, FIRST, changed(rank1=0)),
        "is not where",
    ),
    "a buried element": (lambda store: rewrite(store, FEEDS, FIRST, lambda stored: b"!" + stored[1:]), "state !"),
    "a taken element": (lambda store: rewrite(store, FEEDS, FIRST, lambda stored: b"t" + stored[1:]), "state t"),
    "a leased message": (lambda store: rewrite(store, QUEUE, FIRST, changed(owner=1)), "held by session 1"),
    "a delayed message": (lambda store: rewrite(store, QUEUE, SECOND, lambda stored: b"~" + stored[1:]), "state ~"),
    "a last id that is too low": (
        lambda store: run(store, QUEUE, "HSET", "meta", "ms", 5, "seq", 9),
        "the stored last id is 5-9",
    ),
    "no last id": (lambda store: run(store, QUEUE, "HDEL", "meta", "ms", "seq"), "the stored last id is 0-0"),
    "a wrong counter": (lambda store: run(store, QUEUE, "HINCRBY", "meta", "taken", 3), "counter taken"),
    "no delivered index": (lambda store: run(store, QUEUE, "DEL", "delivered"), "delivered index"),
    "a stray delivery": (lambda store: run(store, QUEUE, "ZADD", "delivered", 9, SECOND), "delivered index"),
    "no ready index": (lambda store: run(store, FEEDS, "DEL", "ready"), "ready index"),
    "lost ids": (lambda store: run(store, FEEDS, "DEL", "addresses"), "address a"),
    "an id of no task": (lambda store: run(store, QUEUE, "HSET", "addresses", "7-7", task_key(9)), "address 7-7"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_repaired(broker: penstock.Broker, name: str) -> None:
    damage, found = DAMAGE[name]
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
    queue.put_many(["one", "two"])
    assert feeds.take(0) is not None
    assert queue.take(0) is not None
    assert broker.check() == []
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    damage(store)
    assert any(found in finding.what for finding in broker.check()), broker.check()
    broker.check(repair=True)
    assert broker.check() == []
    assert [task.id for task in feeds.take_many(9)] == ["b"]
    assert "a" in feeds
    assert [task.data for task in queue.recover(9, 0)] == ["one"]
    last = queue.inspect(-1, 1)[0]
    assert queue.put("three").id > last.id
    assert broker.check() == []
