"""How long the oldest ready task of a tube has waited."""

from __future__ import annotations

import penstock
from penstock.testing import Clock
from tests.support.verbs import take


def oldest(tube: penstock.Tube) -> float:
    return tube.runtime.store.counters([tube.stored])[tube.stored.no].waits


def test_the_wait_counts_from_put_and_from_the_last_take(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    assert oldest(tube) == 0
    tube.put("a")
    tube.put("later", delay=60)
    clock.advance(2)
    tube.put("b")
    assert oldest(tube) == 2
    task = take(tube)
    assert oldest(tube) == 0
    clock.advance(1)
    task.release()
    assert oldest(tube) == 1


def test_a_task_behind_more_urgent_ones_counts(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("patient", pri=9)
    clock.advance(3)
    tube.put_many([("also patient", {"pri": 9}), ("urgent", {"pri": 1})])
    assert oldest(tube) == 3


def test_several_tubes_are_read_at_once(broker: penstock.Broker, clock: Clock) -> None:
    tubes = [broker.tube(f"t{number}") for number in range(3)]
    tubes[0].put_many([1, 2])
    tubes[2].pause()
    clock.advance(2)
    tubes[1].put(3)
    stored = [tube.stored for tube in tubes]
    tubes[1].delete(1)
    found = broker.runtime.store.counters(stored)
    assert [found[tube.no].waits for tube in stored] == [2, 0, 0]
    assert [found[tube.no].counts.ready for tube in stored] == [2, 0, 0]
    assert [found[tube.no].paused for tube in stored] == [False, False, True]
    tubes[0].drop()
    assert broker.runtime.store.counters(stored).keys() == {tube.no for tube in stored[1:]}


def test_tasks_that_cannot_be_taken_do_not_count_as_waiting(broker: penstock.Broker, clock: Clock) -> None:
    queues, ring = broker.tube("queues", kind="utube"), broker.tube("ring", kind="round", period=1)
    queues.put_many([("a", {"utube": "x"}), ("b", {"utube": "x"})])
    ring.put("e", id="1")
    take(queues)
    clock.advance(2)
    assert (oldest(queues), oldest(ring)) == (0, 0)


def test_messages_and_shards(broker: penstock.Broker, clock: Clock) -> None:
    messages, parts = broker.tube("messages", kind="reliable"), broker.tube("parts", shards=4)
    messages.put("m")
    parts.put_many(["a", "b", "c"])
    clock.advance(2)
    assert (oldest(messages), oldest(parts)) == (2, 2)
