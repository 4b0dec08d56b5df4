"""Replies across slots: those that a crash between two tubes left in the outbox are put once, by another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

import penstock
from penstock.core.lifecycle import Move
from penstock.core.results import Effects
from penstock.store.redis.outbox import Outbox, read_entry
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from tests.servers.redis import Redis, RedisCluster
from tests.support.verbs import drain, take


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest, server: Redis, cluster: RedisCluster) -> str:
    return server.fresh_url() if request.param == "server" else cluster.fresh_url()


@pytest.fixture
def broker(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    with penstock.connect(url, clock=clock) as broker:
        yield broker
        assert broker.check() == []


@pytest.fixture
def other(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    """A second broker, which the store takes for another process."""
    with penstock.connect(url, clock=clock) as broker:
        yield broker


def store_of(broker: penstock.Broker) -> RedisStore:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    return store


def end_and_die(broker: penstock.Broker, tube: penstock.Tube, ids: list[int]) -> list[bytes]:
    """End tasks and die before their replies are put. Returns the content of the outbox."""
    store, found = store_of(broker), list[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._outbox, "deliver", lambda source, entries, *rest: found.extend(entries))
        store.settle(tube.stored, [Move("delete", id) for id in ids])
    return found


def ids(replies: list[object]) -> list[int]:
    return [reply["id"] for reply in replies if isinstance(reply, dict)]


def in_outbox(broker: penstock.Broker, tube: penstock.Tube) -> object:
    key = store_of(broker)._keys.name(tube.stored.no, "outbox")
    return store_of(broker)._servers.command(key, "ZCARD", key)


def look_at_once(broker: penstock.Broker) -> None:
    """Make the next search for abandoned replies due now."""
    store_of(broker)._outbox._next_scan = 0.0


def drain_fast(tube: penstock.Tube) -> list[object]:
    return [task.data for task in tube.take_many(10_000)]


def left_of(store: RedisStore, tube: penstock.Tube) -> int:
    """The number of keys of a tube."""
    parts = ("meta", "tasks", "outbox", "groups", "members", "addresses", "outcomes", "kept", "moving", "ready", "due")
    keys = [store._keys.name(tube.stored.no, part) for part in parts]
    found = [store._servers.command(key, "EXISTS", key) for key in keys]
    key = store._keys.name("tubes", "senders")
    return sum(cast("list[int]", [*found, store._servers.command(key, "SISMEMBER", key, tube.stored.no)]))


LOOKS: dict[str, Callable[[penstock.Broker], object]] = {
    "take from the task's tube": lambda broker: broker.tube("t").take(0),
    "stats of the task's tube": lambda broker: broker.tube("t").stats(),
    "stats of the reply tube": lambda broker: broker.tube("replies").stats(),
    "stats of any other": lambda broker: broker.tube("other").stats(),
    "an ack with a reply": lambda broker: take(broker.tube("t")).ack(),
    "drop of the task's tube": lambda broker: broker.tube("t").drop(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_was_left_behind_is_put_once_by_any_process(broker: penstock.Broker, clock: Clock, look: str) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(["x", "y"], reply_to="replies")
    if look == "an ack with a reply":
        tube.put("z", reply_to="replies")
    assert [read_entry(letter).tube for letter in end_and_die(broker, tube, [1, 2])] == ["replies"] * 2
    clock.advance(1)
    look_at_once(broker)
    LOOKS[look](broker)
    expected = [1, 2, 3] if look == "an ack with a reply" else [1, 2]
    assert ids(drain(broker.tube("replies"))) == expected
    if look != "drop of the task's tube":
        assert in_outbox(broker, tube) == 0


def test_a_take_from_the_reply_tube_gets_it(broker: penstock.Broker, clock: Clock) -> None:
    replies, tube = broker.tube("replies"), broker.tube("t")
    tube.put("x", reply_to="replies")
    end_and_die(broker, tube, [1])
    clock.advance(1)
    look_at_once(broker)
    assert take(replies).data == {"id": 1, "address": None, "status": "deleted", "error": None}


def test_entries_of_the_last_second_are_left_to_their_sender(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", reply_to="replies")
    end_and_die(broker, tube, [1])
    clock.advance(0.999)
    look_at_once(broker)
    assert broker.tube("replies").take(0) is None
    assert in_outbox(broker, tube) == 1
    clock.advance(0.001)
    tube.stats()
    assert ids(drain(broker.tube("replies"))) == [1]


def test_replies_that_two_processes_put_at_once_are_put_once(broker: penstock.Broker) -> None:
    """Both read the outbox before either removed anything; the slower one had read less."""
    tube, replies = broker.tube("t"), broker.tube("replies")
    tube.put_many(range(5), reply_to="replies")
    early = end_and_die(broker, tube, [1, 2])
    late = end_and_die(broker, tube, [3, 4])
    assert (len(early), len(late)) == (2, 4)
    outbox = store_of(broker)._outbox
    for letters in (late, early, late):
        outbox._receive(tube.stored.no, "replies", [read_entry(letter) for letter in letters], Effects())
    tube.delete(5)
    assert ids(drain(replies)) == [1, 2, 3, 4, 5]
    assert in_outbox(broker, tube) == 0


def test_more_than_a_page_is_put_at_once(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(range(2_500), reply_to="replies")
    tube.ack_many(tube.take_many(2_500))
    assert ids(drain_fast(broker.tube("replies"))) == list(range(1, 2_501))
    assert in_outbox(broker, tube) == 0


def test_a_dropped_reply_tube_is_created_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    for round in (1, 2):
        tube.put("x", reply_to="replies")
        tube.delete(round)
        assert ids(drain(broker.tube("replies"))) == [round]
        broker.tube("replies").drop()


def test_a_reply_tube_out_of_reach_holds_up_no_ack_and_no_other_tube(
    broker: penstock.Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = broker.tube("t")
    tube.put_many([("x", {"reply_to": "away"}), ("y", {"reply_to": "near"}), ("z", {"reply_to": "away"})])
    original = Outbox._receive

    def receive(self: Outbox, source: int, name: str, *rest: object) -> None:
        if name == "away":
            raise penstock.StoreUnavailable("its node is down")
        original(self, source, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Outbox, "_receive", receive)
    for _ in range(3):
        take(tube).ack()
    assert ids(drain(broker.tube("near"))) == [2]
    assert in_outbox(broker, tube) == 2
    monkeypatch.undo()
    clock.advance(1)
    tube.stats()
    assert ids(drain(broker.tube("away"))) == [1, 3]
    assert in_outbox(broker, tube) == 0


def test_another_process_completes_the_drop_of_a_dead_one(broker: penstock.Broker, other: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(range(1_200), reply_to="replies")
    tube.put("to itself", reply_to="t")
    store = store_of(broker)
    store._runner.on_tag("drop_tube", tube.stored.no, store._runner.moment(), "t")
    assert [info.name for info in other.tubes()] == []
    assert other.tube("t", kind="utube").put("new").id == 1
    look_at_once(other)
    other.tube("other").stats()
    assert sorted(ids(drain_fast(other.tube("replies")))) == list(range(1, 1_201))
    assert drain(other.tube("t")) == ["new"]
    assert left_of(store, tube) == 0


def test_nothing_is_left_of_a_dropped_tube(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("x", {"address": "a", "reply_to": "replies"}), ("y", {"group": "g"})])
    tube.put("z", address="b", ttl=5)
    tube.delete(3)
    tube.drop()
    assert left_of(store_of(broker), tube) == 0
    assert ids(drain(broker.tube("replies"))) == [1]
