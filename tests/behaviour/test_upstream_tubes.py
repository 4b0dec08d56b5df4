"""The tests of the seed's queue (tarantool/queue), as far as our rules allow.

Differences by our rules: ids begin at 1, verbs return None and set the task's status, peek after the ttr shows ready.
"""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import KINDS, TIMED_KINDS, UTUBE_KINDS, drain, take

every_kind = pytest.mark.parametrize("kind", KINDS)
timed_kind = pytest.mark.parametrize("kind", TIMED_KINDS)
utube_kind = pytest.mark.parametrize("kind", UTUBE_KINDS)


@every_kind
def test_statistics(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test_stat", kind)
    _, second, third, _, last = [tube.put(f"stat_{number}") for number in range(5)]
    if kind in TIMED_KINDS:
        tube.put("stat_5", delay=1000)
    tube.delete(last.id)
    tube.release(take(tube).id)
    tube.ack(take(tube).id)
    tube.bury(second.id)
    tube.bury(third.id)
    tube.kick(1)
    take(tube)
    delayed = {"delayed": 1} if kind in TIMED_KINDS else {}
    assert tasks(tube) == {"taken": 1, "buried": 1, "ready": 1, "done": 2, "total": 3 + len(delayed)} | delayed
    assert calls(tube) == {
        "delete": 1, "ack": 1, "take": 3, "kick": 1, "bury": 2, "put": 5 + len(delayed), "release": 1,
    }  # fmt: skip


@every_kind
def test_put_take_ack(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    put = tube.put(123)
    assert (put.status, tube.peek(put.id).data) == ("r", 123)
    task = tube.take(0.1)
    assert task is not None
    assert (task.id, task.status, task.data) == (put.id, "t", 123)
    tube.ack(task)
    assert task.status == "-"
    with pytest.raises(penstock.NotFound):
        tube.peek(put.id)


@every_kind
def test_tasks_come_in_put_order(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    for data in ("first", 2, "third", 4):
        tube.put(data)
    assert drain(tube) == ["first", 2, "third", 4]


@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_a_released_task_comes_before_the_rest(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    for data in ("first", 2, "third", 4):
        tube.put(data)
    first, _ = tube.take_many(2)
    tube.release(first.id)
    assert [take(tube).data for _ in range(3)] == ["first", "third", 4]


@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_bury_kick_delete_peek(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put_many(["first", 2, "third", 4])
    for task in tube.take_many(4):
        tube.bury(task.id)
    assert tube.kick(3) == 3
    tube.take_many(3)
    assert [str(tube.peek(id).status) for id in (1, 2, 3, 4)] == ["t", "t", "t", "!"]
    assert tube.kick(100500) == 1
    assert tube.peek(4).status == "r"
    tube.delete(4)
    with pytest.raises(penstock.NotFound, match="4"):
        tube.peek(4)


@every_kind
def test_creating_an_existing_tube(broker: penstock.Broker, kind: str) -> None:
    broker.create_tube("test", kind)
    with pytest.raises(penstock.TubeExists):
        broker.create_tube("test", kind)
    broker.tube("test", kind=kind)
    assert [(info.name, info.kind) for info in broker.tubes()] == [("test", kind)]


@every_kind
def test_a_disconnected_consumer_loses_its_tasks(broker: penstock.Broker, connect: Connect, kind: str) -> None:
    tube, consumer = broker.create_tube("test", kind), connect()
    for number in (1, 2, 3):
        tube.put(number, utube=number) if kind in UTUBE_KINDS else tube.put(number)
    assert [str(task.status) for task in consumer.tube("test").take_many(3)] == ["t", "t", "t"]
    consumer.close()
    assert [str(tube.peek(id).status) for id in (1, 2, 3)] == ["r", "r", "r"]


@every_kind
@pytest.mark.parametrize("end", ["delete", "bury"])
def test_a_task_removed_or_buried_while_taken_cannot_be_acked(broker: penstock.Broker, kind: str, end: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put("abc")
    task = take(tube)
    getattr(tube, end)(task.id)
    with pytest.raises(penstock.NotTaken):
        tube.ack(task.id)


@timed_kind
def test_a_delayed_task_with_ttl_and_ttr(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    assert tube.put("cde", delay=1, ttl=1, ttr=0.1).status == "~"
    clock.advance(0.1)
    assert tube.take(0) is None
    clock.advance(0.9)
    assert take(tube).data == "cde"
    clock.advance(0.5)
    again = take(tube)
    clock.advance(2)
    with pytest.raises(penstock.NotTaken):
        tube.ack(again.id)
    assert tube.take(0) is None
    with pytest.raises(penstock.NotFound):
        tube.peek(again.id)


@timed_kind
def test_one_message_at_a_time_expires(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    found = []
    for number in range(20):
        tube.put(number, ttl=0.1)
        clock.advance(0.1)
        found.append(tube.take(0))
    assert found == [None] * 20
    assert calls(tube) == {"put": 20, "ttl": 20}


@timed_kind
def test_ready_again_after_ttr(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put("ttr1", ttr=1)
    take(tube)
    clock.advance(1.1)
    assert tube.peek(1).status == "r"


@timed_kind
def test_touch(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put("abc", ttl=0.2, ttr=0.1)
    task = take(tube)
    tube.touch(task.id, 0.3)
    clock.advance(0.1)
    tube.ack(task)
    assert task.status == "-"


@timed_kind
def test_ttl_after_release_with_delay(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    put = tube.put("test_task", ttl=10, ttr=12)
    take(tube).release(delay=2)
    assert tube.peek(1).expires == (put.expires or 0) + 2
    clock.advance(2)
    assert take(tube).due == clock.seconds + 12


@timed_kind
def test_a_task_released_without_delay_still_expires(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put("test_task", ttl=1, ttr=10)
    take(tube).release()
    clock.advance(1.3)
    assert tube.take(0) is None


@timed_kind
def test_priority(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put(670, pri=1)
    tube.put(671, pri=0)
    task = take(tube)
    assert task.data == 671
    tube.release(task.id)
    assert drain(tube) == [671, 670]


@timed_kind
def test_a_tube_with_a_buried_task_can_be_dropped(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.create_tube("test", kind, ttr=0.1)
    tube.put({"foo": "bar"})
    tube.bury(take(tube).id)
    tube.drop()
    clock.advance(0.2)
    assert broker.tubes() == []


@timed_kind
def test_a_buried_task_that_expires_while_others_are_worked_on(
    broker: penstock.Broker, clock: Clock, kind: str
) -> None:
    tube = broker.create_tube("test", kind)
    tube.put("buried", ttl=1, utube="a") if kind in UTUBE_KINDS else tube.put("buried", ttl=1)
    tube.bury(1)
    clock.advance(1)
    tube.put("next", utube="a") if kind in UTUBE_KINDS else tube.put("next")
    assert drain(tube) == ["next"]
    assert tube.kick(5) == 0


@utube_kind
def test_the_second_of_a_micro_queue_waits_for_the_ack(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put(123, utube=1)
    tube.put(345, utube=1)
    task = take(tube)
    assert task.data == 123
    assert tube.take(0) is None
    tube.ack(task.id)
    assert take(tube).data == 345


@utube_kind
def test_a_kicked_task_comes_before_a_younger_one(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    tube.put_many(["first", "second"], utube="v")
    tube.bury(take(tube).id)
    assert tube.kick(1) == 1
    assert drain(tube) == ["first", "second"]


def test_a_task_released_with_delay_does_not_block_the_second(broker: penstock.Broker) -> None:
    tube = broker.create_tube("test", "utubettl")
    tube.put_many([789, 901], utube="efg")
    take(tube).release(delay=10)
    assert take(tube).data == 901


@every_kind
def test_tasks_by_state(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    for number in range(10):
        tube.put(number, utube=number) if kind in UTUBE_KINDS else tube.put(number)
    tube.take_many(4)
    assert [len(tube.tasks(status)) for status in ("r", "t")] == [6, 4]


@every_kind
def test_the_change_callback(broker: penstock.Broker, kind: str) -> None:
    tube = broker.create_tube("test", kind)
    reported: list[str] = []

    def first(task: penstock.Task, event: str) -> None:
        reported.append(f"first {event}")

    def second(task: penstock.Task, event: str) -> None:
        reported.append(f"second {event}")

    def work() -> None:
        tube.put(123)
        take(tube).ack()

    assert tube.on_change(first) is None
    work()
    assert tube.on_change(second) is first
    work()
    assert tube.on_change(None) is second
    work()
    assert reported == ["first put", "first take", "first ack", "second put", "second take", "second ack"]
