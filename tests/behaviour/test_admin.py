"""Operator calls: settle one task whichever session holds it, and list what is busy and what fails."""

from __future__ import annotations

import pytest

import penstock
from penstock.broker import admin
from penstock.core.results import Event
from penstock.core.task import Status, record_of
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import take


def buried(tube: penstock.Tube) -> penstock.Task:
    """The second of three buried tasks; kick(1) would kick the first."""
    put = tube.put_many([1, 2, 3])
    for task in put:
        tube.bury(task.id, "broken")
    return put[1]


@pytest.fixture
def tube(broker: penstock.Broker) -> penstock.Tube:
    return broker.tube("mail")


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl"])
def test_one_buried_task_is_kicked(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("mail", kind)
    task = buried(tube)
    admin.kick_one(tube, task.id)
    assert tasks(tube) == {"ready": 1, "buried": 2, "total": 3}
    assert calls(tube) == {"put": 3, "bury": 3, "kick": 1}
    assert take(tube).id == task.id
    assert tube.peek(task.id).reason is None


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_a_kicked_task_still_waits_for_the_start_of_its_group(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("mail", kind)
    group = tube.group("g")
    task = group.put("x")
    tube.bury(task.id)
    admin.kick_one(tube, task.id)
    assert tasks(tube) == {"delayed": 1, "total": 1}
    assert tube.take(0) is None
    group.start()
    assert take(tube).data == "x"


def test_a_task_that_is_not_buried_is_not_kicked(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    task = tube.put(1)
    with pytest.raises(penstock.NotFound, match="is not buried"):
        admin.kick_one(tube, task.id)
    with pytest.raises(penstock.NotFound, match="is not in tube"):
        admin.kick_one(tube, 99)
    assert calls(tube) == {"put": 1}
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_task_of_another_session_is_released(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("mail")
    tube.put(1)
    held = take(connect().tube("mail"))
    admin.release_one(tube, held.id)
    with pytest.raises(penstock.NotTaken):
        held.ack()
    with pytest.raises(penstock.NotTaken, match="is not taken"):
        admin.release_one(tube, held.id)
    assert take(tube).id == held.id


def test_retry_kicks_releases_or_ends_a_delay(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("mail")
    tube.put(1)
    held = take(connect().tube("mail"))
    admin.retry(tube, held.id)
    assert tube.peek(held.id).status is Status.READY
    tube.bury(held.id)
    admin.retry(tube, held.id)
    assert tube.peek(held.id).status is Status.READY
    again = take(tube)
    tube.release(again, delay=60)
    admin.retry(tube, again.id)
    assert (tube.peek(again.id).status, tube.peek(again.id).attempts) == (Status.READY, 0)
    with pytest.raises(penstock.NotTaken, match="is already ready"):
        admin.retry(tube, again.id)


def test_an_address_is_found_and_its_task_is_cancelled(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    tube.put("other")
    task = tube.put("x", address="a/ü")
    admin.cancel(tube, task.id, "too late")
    assert tube.wait("a/ü", 0) == penstock.Outcome("cancelled", error="too late")
    with pytest.raises(penstock.NotFound, match=f"task {task.id} is not in tube mail"):
        admin.cancel(tube, task.id)
    with pytest.raises(penstock.NotFound, match="task of address a/ü is not in tube mail"):
        tube.peek(address="a/ü")
    for wrong in ("", " ", "a" * 10_000, "\ud800"):
        with pytest.raises(penstock.BadValue):
            tube.peek(address=wrong)
    with pytest.raises(penstock.UnsupportedOption):
        broker.tube("round", "round", period=1).peek(address="a")


def test_many_tasks_are_retried_cancelled_and_deleted(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    tube.put_many([(n, {"delay": 60 if n == 1 else 0}) for n in range(5)])
    tube.bury(1, "broken")
    taken = take(tube)  # the third: the first is buried, the second delayed
    records = [record_of(task) for task in tube.tasks()]
    assert admin.change_many(tube, "retry", records) == 2
    assert {task.data: str(task.status) for task in tube.tasks()} == {0: "r", 1: "r", 2: "t", 3: "r", 4: "r"}
    assert admin.change_many(tube, "cancel", [record_of(taken), records[0]], "too late") == 2
    with pytest.raises(penstock.NotTaken):
        taken.ack()
    assert admin.change_many(tube, "delete", [*records[:2], records[4]]) == 2  # one is gone
    assert [task.data for task in tube.tasks()] == [3]
    feeds = broker.tube("feeds", "round", period=1)
    feeds.put_many([("x", {"id": "a"}), ("y", {"id": "b"})])
    assert admin.change_many(feeds, "delete", [record_of(feeds.peek("a"))]) == 1
    assert "a" not in feeds
    with pytest.raises(penstock.UnsupportedOption):
        admin.change_many(feeds, "retry", [record_of(feeds.peek("b"))])


def test_each_status_has_its_verbs() -> None:
    assert {status.name: admin.verbs_for(status) for status in Status} == {
        "READY": ["bury", "cancel", "delete"],
        "TAKEN": ["release", "bury", "cancel", "delete"],
        "DONE": [],
        "BURIED": ["retry", "cancel", "delete"],
        "DELAYED": ["retry", "bury", "cancel", "delete"],
    }


def test_the_busiest_micro_queue_comes_first(broker: penstock.Broker) -> None:
    tube = broker.tube("mail", "utube")
    tube.put_many([(n, {"utube": "busy"}) for n in range(3)] + [(9, {"utube": "calm"})])
    taken = take(tube)
    micro_queues = admin.micro_queues(tube)
    assert [
        (micro_queue.utube, micro_queue.taken, micro_queue.heads + micro_queue.waiting) for micro_queue in micro_queues
    ] == [("busy", 1, 2), ("calm", 0, 1)]
    assert taken.utube == "busy"


def test_the_hosts_of_callbacks_are_counted(broker: penstock.Broker) -> None:
    tube = broker.tube("hooks", max_attempts=2)
    tube.put(1, callback="https://a.example/x")
    tube.put(2, callback="https://b.example:8443/y")
    tube.put(3)
    tube.bury(2, "status 500")
    assert admin.callbacks(tube) == [
        admin.Callback("hooks", "b.example:8443", 0, 0, 1, "status 500"),
        admin.Callback("hooks", "a.example", 1, 0, 0, None),
    ]


def test_live_groups_are_listed_by_name(tube: penstock.Tube) -> None:
    for name in ("b", "a", "c", "over"):
        tube.group(name).put_many([1, 2])
    tube.group("over").cancel()
    tube.group("a").start()
    listed = [(group.name, group.state, group.total) for group in admin.live_groups(tube)]
    assert listed == [("a", "started", 2), ("b", "open", 2), ("c", "open", 2)]
    assert [group.name for group in admin.live_groups(tube, "a", 1)] == ["b"]


def test_a_live_group_is_opened_not_created(tube: penstock.Tube) -> None:
    for name in ("a", "a.b", "aa", "b"):
        tube.group(name).put(name)
    assert admin.live_group(tube, "aa").total == 1
    for name in ("a.", "ab", "A", "0"):
        with pytest.raises(penstock.NotFound, match="is not live"):
            admin.live_group(tube, name)
    assert [group.name for group in admin.live_groups(tube)] == ["a", "a.b", "aa", "b"]


def test_the_event_tap_gets_every_event_of_every_tube(broker: penstock.Broker) -> None:
    events: list[Event] = []
    broker.runtime.tap = events.extend
    one, other = broker.tube("one"), broker.tube("other")
    one.put("x")
    other.put_many([1, 2])
    take(one).ack()
    assert [(event.name, event.record.id) for event in events] == [
        ("put", 1), ("put", 1), ("put", 2), ("take", 1), ("ack", 1),
    ]  # fmt: skip
    assert events[-1].tube == one.stored.no
