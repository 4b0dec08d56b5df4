"""Tubes are moved out of and into a pool: killed at any step, with or without loss of Redis, a move continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

import penstock
from penstock.core.entry import plain_entry
from penstock.core.options import Tube
from penstock.store.pool.pool_store import PoolStore
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from tests.pool.conftest import Connect
from tests.servers.redis import Redis
from tests.support.quiet_broker import quiet
from tests.support.verbs import take
from tests.transfer.sample_tubes import FILLED, moved, opened, seen
from tests.transfer.test_crashes import Killed, KillPoint, visible


def store_of(broker: penstock.Broker) -> PoolStore:
    store = broker.runtime.store
    assert isinstance(store, PoolStore)
    return store


@contextmanager
def killable(broker: penstock.Broker, death: KillPoint) -> Iterator[None]:
    """Make every script and every commit of the broker a step at which it may be killed."""
    store = store_of(broker)
    script, transact, write = store._servers.run, store._vault._db.run, store._vault._db.write

    def commit(work: Callable[[Any], Any], **options: Any) -> Any:
        return transact(lambda session: death.meet(lambda answer: answer, work(session)), **options)

    store._servers.run = lambda *words, **options: death.meet(script, *words, **options)  # type: ignore[method-assign]
    store._vault._db.run = commit  # type: ignore[method-assign]
    store._vault._db.write = lambda *words: death.meet(write, *words)  # type: ignore[method-assign]
    try:
        yield
    finally:
        store._servers.run = script  # type: ignore[method-assign]
        store._vault._db.run = transact  # type: ignore[method-assign]
        store._vault._db.write = write  # type: ignore[method-assign]


def test_a_move_killed_at_any_step_can_be_resumed(server: Redis, databases: Callable[[], str], clock: Clock) -> None:
    with (
        penstock.connect(server.fresh_url(), pool=databases(), clock=clock) as old,
        penstock.connect(server.fresh_url(), pool=databases(), clock=clock) as new,
    ):
        for broker in (old, new):
            quiet(broker)  # a heartbeat would be a step, in a thread that is not expected to die
        FILLED["related"](old, clock)
        before = seen(old, "related")
        for step in count(1):
            death = KillPoint(step, after=False)
            with killable(old, death), killable(new, death):
                try:
                    moved(old, new, "related")
                except Killed:
                    pass
                else:
                    break
            if step % 3 == 0:  # not by twos: it moves there and back
                server.ask("FLUSHALL")
            assert not (visible(old, "related") and visible(new, "related"))
            moved(old, new, "related")
            assert seen(new, "related") == before
            assert old.check() == new.check() == []
            old, new = new, old
        assert step > 40


@pytest.mark.parametrize("databases", ["postgres", "mariadb"], indirect=True)
def test_a_tube_leaves_a_pool_and_returns(front: str, database: str, server: Redis, clock: Clock) -> None:
    with penstock.connect(front, pool=database, clock=clock) as pool, opened("memory://other", clock) as other:
        FILLED["related"](pool, clock)
        handle, before = pool.tube("related"), seen(pool, "related")
        moved(pool, other, "related")
        assert seen(other, "related") == before
        server.ask("FLUSHALL")
        for use in (lambda: handle.put("late"), handle.stats, lambda: handle.take(0), lambda: pool.tube("related")):
            with pytest.raises(penstock.NoSuchTube, match="tube related has moved to"):
                use()
        moved(other, pool, "related")
        server.ask("FLUSHALL")
        assert seen(pool, "related") == before
        assert pool.check() == []


def test_what_was_put_before_the_freeze_is_moved_too(connect: Connect) -> None:
    """The put has run its script, the tube is frozen, then the put commits."""
    one, other = connect(), connect()
    tube, store = one.tube("t").stored, store_of(one)
    epoch = str(store._servers.epoch)
    RedisStore.put(store, tube, [plain_entry(tube, b'"put"')])
    with penstock.connect("memory://target") as target:
        moved(other, target, "t")
        store._mirror.write(tube, epoch)
        assert [task.data for task in target.tube("t").tasks()] == ["put"]
    with pytest.raises(penstock.NoSuchTube, match="has moved to"):
        one.tube("t")


def test_a_tube_that_is_frozen_in_redis_alone_is_so_in_the_database_before_it_is_copied(
    connect: Connect, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = connect(), connect()
    tube, freeze = one.tube("t"), RedisStore.freeze_tube
    tube.put("a")

    def freeze_and_die(store: RedisStore, stored: Tube, to: str) -> None:
        freeze(store, stored, to)
        raise Killed

    with penstock.connect("memory://target") as target:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(RedisStore, "freeze_tube", freeze_and_die)
            moved(one, target, "t")
        with pytest.raises(penstock.NoSuchTube, match="has moved to"):
            tube.stats()
        moved(other, target, "t")
        server.ask("FLUSHALL")
        with pytest.raises(penstock.NoSuchTube, match="has moved to"):
            tube.put("late")
        assert [task.data for task in target.tube("t").tasks()] == ["a"]


def test_the_name_of_a_tube_in_transfer_cannot_be_used(broker: penstock.Broker) -> None:
    kind = broker.tube("t").stored.kind
    store = store_of(broker)
    coming = store.save_tube("<mail", kind, {}, exist_ok=False)
    with pytest.raises(penstock.NoSuchTube, match="tube mail is being imported into this store"):
        broker.tube("mail")
    store.drop_tube(coming)
    broker.tube("mail").put("x")
    assert take(broker.tube("mail")).data == "x"
