"""Kinds round and reliable after a restart of all programs that use the store."""

from __future__ import annotations

import penstock
from penstock.testing import Clock
from tests.support.inspection import facts


def test_order_deliveries_times_and_the_last_id_outlive_a_restart(durable_url: str, clock: Clock) -> None:
    with penstock.connect(durable_url, clock=clock) as broker:
        queue = broker.tube("queue", kind="reliable")
        queue.put_many([*"abcde"])
        queue.take_many(3)
        clock.advance(1)
        queue.recover(1, 0)
        pending, waiting = queue.inspect(0, 9, True), queue.inspect(0, 9)
    clock.advance(-5)
    with penstock.connect(durable_url, clock=clock) as broker:
        queue = broker.tube("queue")
        assert [facts(task) for task in queue.inspect(0, 9, True)] == [facts(task) for task in pending]
        assert [facts(task) for task in queue.inspect(0, 9)] == [facts(task) for task in waiting]
        assert [task.data for task in pending] == ["b", "c", "a"]
        ms, _, seq = waiting[-1].id.partition("-")
        assert queue.put("f").id == f"{ms}-{int(seq) + 1}"
        assert broker.check() == []


def test_the_last_id_outlives_all_messages(durable_url: str, clock: Clock) -> None:
    with penstock.connect(durable_url, clock=clock) as broker:
        queue = broker.tube("queue", kind="reliable")
        queue.put_many([*"ab"])
        queue.ack_many(queue.take_many(2))
    with penstock.connect(durable_url, clock=clock) as broker:
        assert broker.tube("queue").put("c").id == f"{clock()}-3"


def test_the_clocks_of_elements_outlive_a_restart(durable_url: str, clock: Clock) -> None:
    with penstock.connect(durable_url, clock=clock) as broker:
        feeds = broker.tube("feeds", kind="round", period=5)
        feeds.put_many([(n, {"id": str(n)}) for n in range(3)])
        feeds.take_many(2)
    clock.advance(4)
    with penstock.connect(durable_url, clock=clock) as broker:
        feeds = broker.tube("feeds")
        assert [task.id for task in feeds.take_many(9)] == ["2"]
        clock.advance(1)
        assert [task.id for task in feeds.take_many(9)] == ["0", "1"]
        assert broker.check() == []
