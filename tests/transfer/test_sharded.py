"""Sharded tubes move out of and into Redis: ids are kept, and each task is found in its shard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

import penstock
from penstock.engine.store import load_tube
from penstock.store.redis.servers import Request, Servers
from penstock.store.redis.sharded import ShardedStore
from penstock.testing import Clock
from tests.conftest import STORES
from tests.support.quiet_broker import quiet
from tests.transfer.sample_tubes import exported, imported, moved, opened, seen
from tests.transfer.test_crashes import Killed, KillPoint, visible

SHARDED = ("redis", "redis-cluster")
Fill = Callable[[penstock.Broker], penstock.Tube]


def split(broker: penstock.Broker) -> penstock.Tube:
    """Tasks of every state in each of three shards, some with addresses."""
    tube = broker.tube("split", shards=3, retention=3600)
    tube.put_many(range(5))
    for n in range(12):
        tube.put(n, address=f"a {n}", pri=n, reply_to="replies")
    for address in ("done", "failed"):
        tube.put(address, address=address, pri=0)
    for task in tube.take_many(30):
        if task.address == "failed":
            task.fail("broken", 17)
        elif task.address == "done":
            task.ack(b"\0result")
        else:
            task.release(delay=5 if task.data == 3 else 0)
    tube.put("later", delay=30, ttl=900)
    tube.bury(tube.put("no", address="buried").id, "no such user")
    return tube


def micro_queues(broker: penstock.Broker) -> penstock.Tube:
    """Micro-queues in each of three shards."""
    tube = broker.tube("split", "utubettl", shards=3)
    for n in range(24):
        tube.put(n, utube=f"u{n % 6}" if n % 5 else None, pri=n % 2)
    tube.bury(tube.put("no", utube="u1").id)
    return tube


FILLS = pytest.mark.parametrize("fill", [split, micro_queues])


@pytest.fixture(
    params=[
        ("redis", "sqlite"), ("redis-cluster", "memory"), ("sqlite", "redis"), ("memory", "redis-cluster"),
        ("redis", "redis-cluster"),
    ],
    ids="-".join,
)  # fmt: skip
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Two stores, of which at least one splits tubes."""
    first, second = (STORES[name](tmp_path) for name in request.param)
    return first, second


def turns(tube: penstock.Tube) -> dict[str | None, list[int | str]]:
    """The tasks that can be taken, in order, by micro-queue."""
    found: dict[str | None, list[int | str]] = {}
    while (task := tube.take(0)) is not None:
        found.setdefault(task.utube, []).append(task.id)
        task.ack()
    return found if tube.stored.kind.per_utube else {None: sorted(found.get(None, []), key=str)}


def counted(stats: object, ungiven: int) -> penstock.TubeStats:
    """The counters, with ids that were never used counted as put and done."""
    assert isinstance(stats, penstock.TubeStats)
    tasks, calls = stats.tasks, stats.calls
    return penstock.TubeStats(replace(tasks, done=tasks.done + ungiven), replace(calls, put=calls.put + ungiven))


@FILLS
def test_a_moved_tube_is_unchanged(pair: tuple[str, str], clock: Clock, fill: Fill) -> None:
    with opened(pair[0], clock) as old, opened(pair[1], clock) as new:
        handle = fill(old)
        before, content, last = seen(old, "split"), exported(old, "split"), max(task.id for task in handle.tasks())
        handle_put = handle.stats().calls.put
        moved(old, new, "split")
        there = new.tube("split")
        after, ungiven = seen(new, "split"), there.stats().calls.put - handle_put
        assert after == before | {"counts": after["counts"]}
        assert ungiven == 0 or not isinstance(new.runtime.store, ShardedStore)
        assert there.stats() == counted(before["counts"], ungiven)
        for use in (lambda: old.tube("split"), handle.stats, lambda: handle.take(0), lambda: handle.put("late")):
            with pytest.raises(penstock.NoSuchTube, match="tube split has moved to"):
                use()
        assert old.tubes() == []
        assert there.put_many(["next", "more"])[0].id > last
        imported(new, content, "twin")
        for task in there.tasks(limit=2):
            there.delete(task.id)
            new.tube("twin").delete(task.id)
        for task in there.tasks():
            if task.data in ("next", "more"):
                there.delete(task.id)
        assert turns(there) == turns(new.tube("twin"))
        assert moved(old, new, "split")[0].tasks == 0


@pytest.mark.parametrize("store_url", SHARDED, indirect=True)
def test_imported_tasks_work_like_all_others(store_url: str, clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened(store_url, clock) as new:
        split(old)
        old.tube("replies")
        moved(old, new, "split")
        tube = new.tube("split")
        one, two, three = (tube.put("x", address=f"a {n}", on_duplicate="ignore") for n in (1, 2, 4))
        assert [(task.id, task.data) for task in (one, two, three)] == [(7, 1), (8, 2), (10, 4)]
        tube.delete(one.id)
        with pytest.raises(penstock.NotFound):
            tube.peek(one.id)
        assert tube.wait("a 1", 0).status == "deleted"
        tasks = {task.id: task for task in tube.take_many(30)}
        assert "first of 0 tasks" not in tube.why(two.id)
        assert tube.ack_many([tasks[two.id], tasks[three.id], 4711]) == [True, True, False]
        replies = new.tube("replies")
        assert [replies.take(0).data["id"] for _ in range(3)] == [7, 8, 10]  # type: ignore[union-attr]
        tube.release_all()
        assert [task.id for task in tube.tasks(limit=3)] == [1, 2, 3]
        again = [tube.put(n).id for n in range(6)]
        assert len(set(again)) == 6
        assert min(again) > 21
        assert {task.id for task in tube.tasks(after=21)} == set(again)


@pytest.mark.parametrize("store_url", ["redis"], indirect=True)
def test_an_address_of_two_micro_queues_stays_with_the_first(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as old, opened("memory://new", clock) as new:
        tube = old.tube("split", "utube", shards=3)
        for n in range(4):
            tube.put(n, utube=f"u{n}", address="same", on_duplicate="ignore")
        addressed = tube.tasks()
        assert len(addressed) > 1
        content = exported(old, "split")
        moved(old, new, "split")
        imported(new, content, "copy")
        for name in ("split", "copy"):
            there = new.tube(name).tasks()
            assert [(task.id, task.data) for task in there] == [(task.id, task.data) for task in addressed]
            assert [task.address for task in there] == ["same", *[None] * (len(there) - 1)]


@pytest.mark.parametrize("store_url", ["redis"], indirect=True)
def test_the_outcome_of_an_address_is_that_of_its_last_task_wherever_it_came_from(store_url: str, clock: Clock) -> None:
    with opened("memory://old", clock) as old, opened(store_url, clock) as new:
        tube = old.tube("split", "utube", shards=3)
        for n in range(3):
            tube.put(n, utube="b", address=f"a {n}")
            with tube.take(0) as task:  # type: ignore[union-attr]
                task.ack("old")
        moved(old, new, "split")
        there = new.tube("split")
        for n in range(3):
            assert there.wait(f"a {n}", 0).result == "old"
            there.put(n, utube="b", address=f"a {n}")
            with there.take(0) as task:  # type: ignore[union-attr]
                task.ack("new")
        assert [there.wait(f"a {n}", 0).result for n in range(3)] == ["new"] * 3


class _Scripts:
    """Counts every script that the servers of a store run."""

    def __init__(self, servers: Servers, death: KillPoint) -> None:
        self._servers = servers
        self._death = death

    def run(self, request: Request, *, idempotent: bool) -> object:
        return self._death.meet(self._servers.run, request, idempotent=idempotent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._servers, name)


@FILLS
def test_a_move_killed_at_any_script_can_be_resumed(fill: Fill, tmp_path: Path, clock: Clock) -> None:
    first, second = (STORES[name](tmp_path) for name in SHARDED)
    with opened(first, clock) as old, opened(second, clock) as new:
        for broker in (old, new):
            quiet(broker)  # a heartbeat would be a script, in a thread that is not expected to die
        fill(old)
        before = seen(old, "split")
        for step in count(1):
            if not killed(old, new, KillPoint(step, after=False)):
                break
            assert not (visible(old, "split") and visible(new, "split"))
            moved(old, new, "split")
            assert seen(new, "split") == before
            old, new = new, old  # it moves there and back
        assert step > 25


def killed(old: penstock.Broker, new: penstock.Broker, death: KillPoint) -> bool:
    """Move the tube. Returns whether the move was killed before it finished."""
    runners = [cast(ShardedStore, broker.runtime.store)._runner for broker in (old, new)]
    servers = [runner.servers for runner in runners]
    try:
        for runner in runners:
            runner.servers = cast(Servers, _Scripts(runner.servers, death))
        moved(old, new, "split")
    except Killed:
        return True
    finally:
        for runner, own in zip(runners, servers, strict=True):
            runner.servers = own
    return False


@pytest.mark.parametrize("store_url", SHARDED, indirect=True)
def test_a_tube_resumed_in_the_middle_of_a_freeze_is_complete(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        tube, store = split(broker), broker.runtime.store
        assert isinstance(store, ShardedStore)
        before, shards = seen(broker, "split"), store._tubes.shards(tube.stored)
        store._freeze(shards[2], "sqlite:///elsewhere.db", 0)
        with pytest.raises(penstock.NoSuchTube, match="has moved to"):
            tube.stats()
        [found] = broker.check()
        assert (found.tube, found.what) == ("split", "an interrupted move has left a part of it frozen")
        tube.resume()
        assert seen(broker, "split") == before
        with pytest.raises(penstock.TubeBusy, match="was paused or resumed during the move"):
            store._freeze(shards[0], "sqlite:///elsewhere.db", 0, checked=True)
        store._freeze(shards[2], "sqlite:///elsewhere.db", 7)
        store._runner.on_tag("unfreeze_tube", shards[2].no, 7)  # by a slow caller
        assert load_tube(store, "split") is not None
        with pytest.raises(penstock.NoSuchTube, match="has moved to"):
            store.counters(shards[2])
        store._runner.on_tag("unfreeze_tube", shards[2].no, 8)
        store._freeze(shards[1], "sqlite:///elsewhere.db", 1)
        assert len(broker.check(repair=True)) == 1


@pytest.mark.parametrize("store_url", SHARDED, indirect=True)
def test_a_taken_task_of_any_shard_keeps_the_tube(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as old, opened("memory://new", clock) as new:
        tube = split(old)
        for task in tube.take_many(20):
            if task.data != 4:
                task.release()
        with pytest.raises(penstock.TubeBusy, match="tube split has taken tasks.* was not moved"):
            moved(old, new, "split")
        assert tube.put("continues").id > 0
        assert new.tubes() == []
