"""check finds what must not exist among addresses, outcomes and groups, and repair corrects it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock.store.redis.encoding import task_key
from penstock.store.redis.redis_store import RedisStore
from tests.redis.test_check import run
from tests.support.verbs import drain


def group_key(store: RedisStore, no: int, name: str) -> bytes:
    """The key of the group with that name."""
    number = run(store, no, "HGET", "groups", f"n{name}")
    assert isinstance(number, bytes)
    return b"g" + task_key(int(number))


def set_state(store: RedisStore, no: int, name: str, state: bytes) -> None:
    group = group_key(store, no, name)
    stored = run(store, no, "HGET", "groups", group)
    assert isinstance(stored, bytes)
    run(store, no, "HSET", "groups", group, state + stored[1:])


def lose_end(store: RedisStore, no: int) -> None:
    """Lose the work of the started group without ending it."""
    run(store, no, "HDEL", "tasks", task_key(2))
    run(store, no, "ZREM", "ready", task_key(2))


def run_ahead(store: RedisStore, no: int) -> None:
    stored = run(store, no, "HGET", "tasks", task_key(1))
    assert isinstance(stored, bytes)
    run(store, no, "HSET", "tasks", task_key(1), b"r" + stored[1:])


# name -> the damage, what is found, and what can be taken after the repair
DAMAGE: dict[str, tuple[Callable[[RedisStore, int], object], str, list[object]]] = {
    "a lost address": (lambda store, no: run(store, no, "DEL", "addresses"), "address a", ["s", "end"]),
    "an address of no task": (
        lambda store, no: run(store, no, "HSET", "addresses", "b", task_key(9)),
        "address b belongs to no task",
        ["s", "end"],
    ),
    "an early outcome": (
        lambda store, no: run(store, no, "HSET", "outcomes", task_key(1), bytes(6) + b"\x04done\x01a\0\0\0\0"),
        "still in its tube",
        ["s", "end"],
    ),
    "an outcome forever": (lambda store, no: run(store, no, "DEL", "kept"), "its outcome never expires", ["s", "end"]),
    "a group forever": (lambda store, no: run(store, no, "DEL", "kept"), "has ended, but never expires", ["s", "end"]),
    "a wrong count": (
        lambda store, no: run(
            store,
            no,
            "HSET",
            "groups",
            group_key(store, no, "started"),
            b"sh" + task_key(9) * 2 + task_key(0) * 2 + b"started",
        ),
        "counts 9 tasks left",
        ["s", "end"],
    ),
    "a lost end": (lose_end, "should have ended", ["end"]),
    "a task of no group": (
        lambda store, no: run(store, no, "HDEL", "groups", group_key(store, no, "open")),
        "its group does not exist",
        ["s", "end", "o"],
    ),
    "a task that runs ahead": (run_ahead, "can be taken", ["s", "end"]),
    "a start that nobody follows": (
        lambda store, no: set_state(store, no, "open", b"s"),
        "tasks do not have its state",
        ["s", "end", "o"],
    ),
    "a cancel that nobody follows": (
        lambda store, no: set_state(store, no, "open", b"x"),
        "tasks do not have its state",
        ["s", "end"],
    ),
    "an end that was too early": (
        lambda store, no: set_state(store, no, "started", b"d"),
        "is done, but",
        ["s", "end"],
    ),
    "a lost name": (lambda store, no: run(store, no, "HDEL", "groups", "nopen"), "its name belongs", ["s", "end"]),
    "a lost index": (lambda store, no: run(store, no, "DEL", "members"), "members index", ["s", "end"]),
}


@pytest.fixture(params=["fifottl", "utubettl"])
def broker(request: pytest.FixtureRequest, url: str) -> Iterator[penstock.Broker]:
    """A tube with an open and a started group, and an outcome."""
    with penstock.connect(url) as broker:
        tube = broker.tube("t", kind=request.param)
        opened, started = tube.group("open"), tube.group("started")
        opened.put("o", address="a")
        started.put("s")
        started.on_end("end")
        started.start()
        tube.put("x", address="x")
        tube.delete(3)
        tube.group("over").start()
        assert broker.check() == []
        yield broker


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_repaired(broker: penstock.Broker, name: str) -> None:
    damage, found, expected = DAMAGE[name]
    tube, store = broker.tube("t"), broker.runtime.store
    assert isinstance(store, RedisStore)
    damage(store, tube.stored.no)
    assert any(found in finding.what for finding in broker.check()), broker.check()
    broker.check(repair=True)
    assert broker.check() == []
    assert sorted(map(str, drain(tube))) == sorted(map(str, expected))
    assert broker.check() == []
    if "o" not in expected and "cancel" not in name:
        with pytest.raises(penstock.DuplicateAddress):
            tube.put("again", address="a")
