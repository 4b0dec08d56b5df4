"""A move killed at any step continues when it is started again, and a failed import leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

import penstock
from penstock.core.options import Tube
from penstock.engine.store import Store, load_tube
from penstock.runtime.runtime import BrokerRuntime
from penstock.testing import Clock
from penstock.transfer.export_import import Import
from penstock.transfer.move import Move, shown_url
from tests.conftest import STORES
from tests.transfer.sample_tubes import FILLED, exported, imported, opened, order, seen


class Killed(BaseException):
    """Simulates the end of the process."""


class KillPoint:
    """Raises Killed at a given store call: before it, or after it was applied."""

    def __init__(self, at: int, *, after: bool) -> None:
        self._at = at
        self._after = after
        self._calls = 0

    def wrap(self, store: Store) -> Store:
        """Wrap a store so that every call counts."""
        return cast(Store, _Killable(store, self))

    def meet(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make the call, unless it is the fatal one."""
        self._calls += 1
        if self._calls > self._at or (self._calls == self._at and not self._after):
            raise Killed
        answer = call(*args, **kwargs)
        if self._calls == self._at:
            raise Killed
        return answer


class _Killable:
    def __init__(self, store: Store, death: KillPoint) -> None:
        self._store = store
        self._death = death

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return (lambda *args, **kwargs: self._death.meet(found, *args, **kwargs)) if callable(found) else found


def move(old: penstock.Broker, new: penstock.Broker, death: KillPoint, *tubes: str) -> None:
    """Try once to move these tubes."""
    source, target = (death.wrap(broker.runtime.store) for broker in (old, new))
    Move(BrokerRuntime(source), target, "sqlite:///new.db", wait=0, on_progress=lambda *_: None).run(tubes)


def visible(broker: penstock.Broker, name: str) -> bool:
    """Whether programs can use the tube."""
    return name in [info.name for info in broker.tubes()]


PAIRS = [
    ("memory", "sqlite"), ("sqlite", "postgres"), ("postgres", "redis"), ("redis", "mariadb"),
    ("mariadb", "redis-cluster"), ("redis-cluster", "memory"), ("memory", "pool-sqlite"),
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("sides", PAIRS, ids="-".join)
def test_a_move_that_is_killed_at_every_step_ends_well(
    sides: tuple[str, str], after: bool, tmp_path: Path, clock: Clock
) -> None:
    first, second = (STORES[name](tmp_path) for name in sides)
    with opened(first, clock) as old, opened(second, clock) as new:
        FILLED["related"](old, clock)
        FILLED["messages"](old, clock)
        before = {name: seen(old, name) for name in ("related", "messages")}
        content = exported(old, "related")
        for step in count(1):
            try:
                move(old, new, KillPoint(step, after=after), "related", "messages")
            except Killed:
                for name in before:
                    assert not (visible(old, name) and visible(new, name))
            else:
                break
        assert step > 30
        for name, was in before.items():
            assert seen(new, name) == was
        imported(new, content, "twin")
        assert order(new, "related") == order(new, "twin")


@pytest.mark.parametrize("altered", [False, True], ids=["as it was", "altered"])
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("sides", PAIRS, ids="-".join)
def test_a_continued_move_keeps_a_pause_that_was_there_before(
    sides: tuple[str, str], paused: bool, altered: bool, tmp_path: Path, clock: Clock
) -> None:
    first, second = (STORES[name](tmp_path) for name in sides)
    with opened(first, clock) as old, opened(second, clock) as new:
        for step in count(1):
            tube = old.tube(f"jobs-{step}")
            tube.put("x")
            if paused:
                tube.pause()
            with pytest.raises(Killed):
                move(old, new, KillPoint(step, after=True), tube.name)
            if not visible(old, tube.name):  # frozen, after the last step that may confuse it
                break
            if altered:
                tube.alter(ttl=60)
            move(old, new, KillPoint(1000, after=True), tube.name)
            there = new.tube(tube.name)
            assert (new.runtime.store.counters(there.stored).paused, step) == (paused, step)
            assert there.stored.given == ({"ttl": 60} if altered else {})
        assert step > 8


def test_a_tube_that_is_dropped_or_moved_elsewhere_meanwhile_keeps_no_other(clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened("memory://new", clock) as new:
        tubes = {name: old.tube(name) for name in "abcde"}
        for tube in tubes.values():
            tube.put("x")
        pause = old.runtime.store.write_tube

        def drop(tube: Tube, *, paused: bool | None = None, changes: Mapping[str, object] | None = None) -> Tube:
            if tube.name == "a" and paused:
                tubes["b"].drop()
                old.runtime.store.freeze_tube(tubes["d"].stored, "sqlite:///other.db")
                old.runtime.store.freeze_tube(tubes["e"].stored, shown_url("sqlite:///new.db"))
            return pause(tube, paused=paused)

        old.runtime.store.write_tube = drop  # type: ignore[method-assign]
        with pytest.raises(penstock.NoSuchTube, match="tube b"):
            move(old, new, KillPoint(1000, after=True), *tubes)
        assert [info.name for info in new.tubes()] == ["a", "c"]
        there = [load_tube(new.runtime.store, f"<{name}") for name in tubes]
        assert [tube and tube.name for tube in there] == [None] * 4 + ["<e"]  # which a move to another store fills
        assert [new.tube(name).take(0).data for name in "ac"] == ["x", "x"]  # type: ignore[union-attr]


def test_a_resumed_move_imports_reply_tubes_first(clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened("memory://new", clock) as new:
        old.tube("replies").put("older")
        old.tube("jobs").put("x", reply_to="replies")
        for step in count(1):
            try:
                move(old, new, KillPoint(step, after=True), "jobs", "replies")
            except Killed:
                assert visible(new, "replies") or not visible(new, "jobs"), step
            else:
                break
        assert step > 30


def test_another_tube_of_the_name_is_not_taken_for_the_moved_one(clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened("memory://new", clock) as new:
        old.tube("jobs").put_many(range(9))
        with pytest.raises(Killed):
            move(old, new, KillPoint(21, after=True), "jobs")
        store = new.runtime.store
        coming = load_tube(store, "<jobs")
        assert coming is not None
        store.drop_tube(coming)
        new.tube("jobs").put("another")
        with pytest.raises(penstock.TubeExists, match="tube jobs was created again"):
            move(old, new, KillPoint(1000, after=True), "jobs")
        new.tube("jobs").drop()
        move(old, new, KillPoint(1000, after=True), "jobs")
        assert [task.data for task in new.tube("jobs").tasks()] == list(range(9))


@pytest.mark.parametrize("where", [0.3, 0.9])
def test_an_import_that_fails_leaves_nothing(store_url: str, clock: Clock, where: float) -> None:
    with opened(store_url, clock) as broker:
        FILLED["related"](broker, clock)
        content = exported(broker, "related")
        cut = content[: int(len(content) * where)]
        with pytest.raises(penstock.BadValue, match="cut off"):
            imported(broker, cut, "copy")
        assert [info.name for info in broker.tubes()] == ["related"]
        assert imported(broker, content, "copy") == len(broker.tube("copy").tasks())
        assert not visible(broker, "replies")


def test_a_move_does_not_start_on_a_partial_import(clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened("memory://new", clock) as new:
        old.tube("jobs").put_many(range(3))
        content = exported(old, "jobs")
        with pytest.raises(Killed):
            Import(KillPoint(9, after=True).wrap(new.runtime.store), BytesIO(content), "a file").run(lambda count: None)
        old.tube("jobs").put_many(range(3, 9))
        with pytest.raises(penstock.TubeExists, match="an import or another move of tube jobs into the target store"):
            move(old, new, KillPoint(1000, after=True), "jobs")
        assert not old.runtime.store.counters(old.tube("jobs").stored).paused
        Import(new.runtime.store, BytesIO(content), "a file").run(lambda count: None, discard_partial=True)
        new.tube("jobs").drop()
        move(old, new, KillPoint(1000, after=True), "jobs")
        assert [task.data for task in new.tube("jobs").tasks()] == list(range(9))


def test_a_move_that_begins_again_takes_the_tube_as_it_is_now(clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened("memory://new", clock) as new:
        old.tube("jobs")
        for step in count(1):
            with pytest.raises(Killed):
                move(old, new, KillPoint(step, after=True), "jobs")
            if load_tube(new.runtime.store, "<jobs") is not None:
                break
        old.tube("jobs").drop()
        old.tube("jobs", "fifo").put("x")
        move(old, new, KillPoint(1000, after=True), "jobs")
        assert new.tube("jobs").kind == "fifo"


def test_a_killed_import_is_restarted_on_request(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        FILLED["related"](broker, clock)
        content = exported(broker, "related")
        mortal = KillPoint(9, after=True).wrap(broker.runtime.store)
        with pytest.raises(Killed):
            Import(mortal, BytesIO(content), "a file", "copy").run(lambda count: None)
        with pytest.raises(penstock.BadValue, match="import with --discard-partial"):
            imported(broker, content, "copy")
        Import(broker.runtime.store, BytesIO(content), "a file", "copy").run(lambda count: None, discard_partial=True)
        assert seen(broker, "copy") == seen(broker, "related")
