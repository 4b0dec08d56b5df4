"""check finds what must not exist in tubes of unleased kinds in memory, and repair mends it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from msgspec.structs import replace

import penstock
from penstock.store.memory import MemoryStore
from penstock.store.memory.tube import TubeState


def _alter(tube: TubeState, **fields: object) -> None:
    tube.records[1] = replace(tube.records[1], **fields)


def _forget_last(tube: TubeState) -> None:
    tube.naming.last = (5, 9)


# name -> the damaged tube, the damage, and what is found
DAMAGE: dict[str, tuple[str, Callable[[TubeState], object], str]] = {
    "an element out of its place": ("feeds", lambda tube: _alter(tube, rank1=7), "does not stand"),
    "a buried element": ("feeds", lambda tube: _alter(tube, state="!"), "state !"),
    "a leased message": ("queue", lambda tube: _alter(tube, owner=1), "held by session 1"),
    "a lost message": ("queue", lambda tube: tube.delivered.pop(), "never recovered"),
    "a last id that is too low": ("queue", _forget_last, "the last id is kept as 5-9"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(name: str) -> None:
    where, damage, found = DAMAGE[name]
    with penstock.connect(f"memory://{uuid4().hex}") as broker:
        feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
        feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
        queue.put_many(["one", "two"])
        for tube in (feeds, queue):
            tube.take(0)
        store = broker._hub.store
        assert isinstance(store, MemoryStore)
        damage(store._by_name[where])
        assert any(found in finding.what for finding in broker.check()), broker.check()
        broker.check(repair=True)
        assert broker.check() == []
        assert [task.id for task in feeds.take_many(9)] == ["b"]
        assert [task.data for task in queue.recover(9, 0)] == ["one"]
        assert queue.put("three").id > queue.inspect(0, 1)[0].id
        assert broker.check() == []
