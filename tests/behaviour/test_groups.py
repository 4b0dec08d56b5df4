"""Groups: work that starts together, and end work exactly once (section 3, groups)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, refused, tasks
from tests.support.verbs import KINDS, TIMED_KINDS, drain, take, take_all


def group_of(tube: penstock.Tube, items: list[object], *, end: object = "end") -> penstock.Group:
    """A group with work and end work, not started."""
    group = tube.group("g")
    group.put_many(items)
    group.on_end(end)
    return group


# before the start


@pytest.mark.parametrize("kind", KINDS)
def test_work_of_a_group_is_invisible_until_it_is_started(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = group_of(tube, ["a", "b"])
    tube.put("plain")
    assert [str(task.status) for task in tube.tasks()] == ["~", "~", "r"]
    assert tasks(tube) == {"ready": 1, "delayed": 2, "total": 3}
    assert drain(tube) == ["plain"]
    group.start()
    assert [str(task.status) for task in tube.tasks()] == ["r", "r"]
    assert drain(tube) == ["a", "b", "end"]


def test_the_most_urgent_work_waits_for_the_start_too(broker: penstock.Broker) -> None:
    tube = broker.tube("t", pri=5)
    tube.group("g").put("urgent", pri=0)
    tube.put("plain", pri=9)
    assert (take(tube).data, tube.take(0)) == ("plain", None)


def test_a_put_names_its_group(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    put = tube.put("a", group="g")
    assert (put.group, put.status, tube.peek(1).group) == ("g", "~", "g")
    tube.put_many(["b", ("c", {"group": "other"})], group="g")
    connect().tube("t").group("g").start()
    assert drain(tube) == ["a", "b"]


def test_a_started_group_takes_more_work_in_its_order(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = group_of(tube, [("a", {"pri": 2}), ("b", {"pri": 1})])
    group.start()
    assert str(group.put("c", pri=0).status) == "r"
    assert drain(tube) == ["c", "b", "a", "end"]


def test_unstarted_work_is_listed_with_the_delayed(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("delayed", delay=5)
    tube.group("g").put_many(["a", "b"])
    tube.put("delayed too", delay=5)
    assert [task.id for task in tube.tasks("~")] == [1, 2, 3, 4]
    assert [task.id for task in tube.tasks("~", limit=2, after=1)] == [2, 3]
    assert tube.tasks("r") == []


def test_why_says_that_a_group_is_not_started(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.group("g").put("a")
    assert "group g is not started" in tube.why(1)


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_a_delay_counts_from_put_and_outlasts_an_early_start(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = tube.group("g")
    group.put("late", delay=4)
    group.put("early", delay=1)
    clock.advance(2)
    assert take_all(tube) == []
    group.start()
    assert take_all(tube) == ["early"]
    clock.advance(2)
    assert tube.peek(1).status == "r"


def test_the_ttl_of_unstarted_work_keeps_running(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    group = group_of(tube, [("a", {"ttl": 2}), ("b", {"ttl": 2, "delay": 1})])
    clock.advance(3)
    assert tasks(tube) == {"done": 2}
    assert (calls(tube)["ttl"], group.progress()) == (2, penstock.Progress(2, 2))
    group.start()
    assert drain(tube) == ["end"]


def test_unstarted_work_can_be_buried_kicked_and_deleted(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = group_of(tube, ["a", "b"])
    tube.bury(1)
    tube.delete(2)
    assert tasks(tube) == {"buried": 1, "done": 1, "total": 1}
    assert tube.kick() == 1
    assert (tasks(tube), tube.take(0)) == ({"delayed": 1, "done": 1, "total": 1}, None)
    group.start()
    assert drain(tube) == ["a", "end"]


def test_unstarted_work_can_be_replaced(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put("a", address="a", pri=5)
    group.put("b", pri=3)
    assert str(group.put("new", address="a", pri=1, on_duplicate="replace").status) == "~"
    assert (tube.take(0), group.progress()) == (None, penstock.Progress(0, 2))
    group.start()
    assert drain(tube) == ["new", "b"]


# the end


ENDS: dict[str, Callable[[penstock.Tube, penstock.Task, Clock], object]] = {
    "ack": lambda tube, task, clock: task.ack(),
    "ack_many": lambda tube, task, clock: tube.ack_many([task]),
    "fail": lambda tube, task, clock: task.fail("broken"),
    "delete": lambda tube, task, clock: tube.delete(task.id),
    "truncate": lambda tube, task, clock: tube.truncate(),
    "ttl": lambda tube, task, clock: _expire(task, clock),
}


def _expire(task: penstock.Task, clock: Clock) -> None:
    task.release()
    clock.advance(10)


@pytest.mark.parametrize("kind", TIMED_KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_the_last_task_to_leave_puts_the_end_work(broker: penstock.Broker, clock: Clock, kind: str, end: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = group_of(tube, [("a", {"ttl": 10, "ttr": 10})], end={"all": "done"})
    group.start()
    task = take(tube)
    with pytest.raises(TimeoutError):
        group.wait(0)
    ENDS[end](tube, task, clock)
    assert (group.wait(0), group.progress()) == ("done", penstock.Progress(1, 1, failed=int(end == "fail")))
    assert drain(tube) == [{"all": "done"}]


@pytest.mark.parametrize("left", ["taken", "delayed", "buried", "ready"])
def test_remaining_tasks_delay_the_end(broker: penstock.Broker, left: str) -> None:
    tube = broker.tube("t")
    group = group_of(tube, ["a", "b"])
    group.start()
    a, b = tube.take_many(2)
    if left == "delayed":
        b.release(delay=5)
    if left == "buried":
        b.bury("odd")
    if left == "ready":
        b.release()
    a.ack()
    assert group.progress() == penstock.Progress(1, 2)
    assert [task.data for task in tube.tasks()] == ["b"]
    tube.delete(b.id)
    assert drain(tube) == ["end"]


def test_a_group_without_end_work_ends_silently(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put("a")
    group.start()
    assert drain(tube) == ["a"]
    assert group.wait(0) == "done"


def test_an_empty_group_ends_when_it_is_started(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = group_of(tube, [])
    group.start()
    assert (group.wait(0), group.progress()) == ("done", penstock.Progress(0, 0))
    assert drain(tube) == ["end"]


def test_a_group_whose_tasks_left_before_the_start_ends_at_the_start(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = group_of(tube, ["a"])
    tube.delete(1)
    assert tasks(tube) == {"done": 1}
    group.start()
    assert drain(tube) == ["end"]


def test_a_second_start_does_nothing(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    group, same = group_of(tube, ["a"]), connect().tube("t").group("g")
    group.start()
    same.start()
    assert drain(tube) == ["a", "end"]
    group.start()
    same.start()
    assert (drain(tube), same.wait(0)) == ([], "done")


def test_the_last_end_work_replaces_earlier_ones(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = group_of(tube, ["a"], end="first")
    group.start()
    group.on_end("second")
    assert drain(tube) == ["a", "second"]


def test_end_work_is_not_counted_as_work_of_the_group(broker: penstock.Broker) -> None:
    tube = broker.tube("t", pri=4)
    group = group_of(tube, ["a"])
    group.start()
    take(tube).ack()
    end = take(tube)
    assert (end.data, end.group, end.pri, end.id > 1) == ("end", None, 4, True)
    assert group.progress() == penstock.Progress(1, 1)


def test_end_work_takes_the_place_of_the_last_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t", capacity=2)
    group = group_of(tube, ["a"])
    group.start()
    tube.put("b", pri=9)
    take(tube).ack()
    assert tasks(tube) == {"ready": 2, "done": 1, "total": 2}


@pytest.mark.parametrize("verb", ["start", "cancel"])
def test_an_empty_group_needs_room_for_its_work(broker: penstock.Broker, verb: str) -> None:
    tube = broker.tube("t", capacity=1)
    group = group_of(tube, [])
    group.on_cancel("cancelled")
    tube.put("full")
    with pytest.raises(penstock.TubeFull):
        getattr(group, verb)()
    take(tube).ack()
    getattr(group, verb)()
    assert drain(tube) == ["end" if verb == "start" else "cancelled"]


# names and handles


def test_a_name_opens_the_live_group_and_then_a_new_one(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    first = group_of(tube, ["a"], end="first end")
    same = connect().tube("t").group("g")
    same.put("b")
    same.start()
    assert drain(tube) == ["a", "b", "first end"]
    second = tube.group("g")
    second.put("c")
    assert (second.progress(), first.progress()) == (penstock.Progress(0, 1), penstock.Progress(2, 2))
    with pytest.raises(TimeoutError):
        second.wait(0)
    assert first.wait(0) == "done"


def test_a_group_belongs_to_one_tube(broker: penstock.Broker) -> None:
    one, other = broker.tube("one"), broker.tube("other")
    one.put("a", group="g")
    other.put("b", group="g")
    one.group("g").start()
    assert (drain(one), drain(other)) == (["a"], [])


ADDING: dict[str, Callable[[penstock.Group], object]] = {
    "put": lambda group: group.put("x"),
    "put_many": lambda group: group.put_many(["x", "y"]),
    "on_end": lambda group: group.on_end("x"),
    "on_cancel": lambda group: group.on_cancel("x"),
}


@pytest.mark.parametrize("add", ADDING)
@pytest.mark.parametrize("end", ["start", "cancel"])
def test_nothing_is_added_to_a_group_that_has_ended(broker: penstock.Broker, add: str, end: str) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    getattr(group, end)()
    before = everything(tube)
    with pytest.raises(penstock.NotFound, match="g"):
        ADDING[add](group)
    assert everything(tube) == before


def test_a_group_is_forgotten_after_the_retention(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", retention=10)
    group = tube.group("g")
    group.start()
    clock.advance(9.999)
    assert group.wait(0) == "done"
    clock.advance(0.001)
    for call in (group.progress, lambda: group.wait(0), lambda: group.put("x")):
        with pytest.raises(penstock.NotFound):
            call()
    group.start()
    group.cancel()


def test_a_live_group_is_never_forgotten(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", retention=1, kind="fifo")
    group = group_of(tube, ["a"])
    clock.advance(1000)
    tube.stats()
    group.start()
    assert drain(tube) == ["a", "end"]


BAD_NAMES: list[Any] = ["", "../x", "a b", "a\r\n", "a\0", "{x}", "'; DROP TABLE", "\u200b", "x" * 201, 5, True, b"x"]


def test_a_bad_group_name_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    refused(BAD_NAMES, tube.group, "group")
    refused(BAD_NAMES, lambda name: tube.put("x", group=name), "group")
    assert (tasks(tube), calls(tube)) == ({}, {})


def test_a_put_of_a_group_cannot_name_another_group(broker: penstock.Broker) -> None:
    group = broker.tube("t").group("g")
    with pytest.raises(penstock.BadValue, match="other"):
        group.put("x", group="other")
    with pytest.raises(penstock.BadValue, match="other"):
        group.put_many(["x", ("y", {"group": "other"})])
    with pytest.raises(penstock.BadValue, match="other"):
        group.put_many([("x", {"group": "g"}), ("y", {"group": "other"})])
    assert group.progress() == penstock.Progress(0, 0)


@pytest.mark.parametrize("data", [{1}, float("nan"), 1j, "\ud800"], ids=repr)
def test_bad_end_work_is_refused(broker: penstock.Broker, data: object) -> None:
    group = broker.tube("t", max_payload=10).group("g")
    for set_work in (group.on_end, group.on_cancel):
        with pytest.raises(penstock.BadValue):
            set_work(data)
        with pytest.raises(penstock.PayloadTooLarge):
            set_work("x" * 9)


def test_a_group_of_a_dropped_tube_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put("a")
    tube.drop()
    calls: list[Callable[[], object]] = [group.start, group.cancel, group.progress, lambda: group.wait(0)]
    calls += [lambda: group.put("b"), lambda: group.on_end("b"), lambda: tube.group("g")]
    for call in calls:
        with pytest.raises(penstock.NoSuchTube):
            call()
    assert broker.tube("t").group("g").progress() == penstock.Progress(0, 0)


def test_an_expired_task_removed_by_a_put_may_be_the_last_of_its_group(broker: penstock.Broker, clock: Clock) -> None:
    """The group ends in the same step: its handle refuses more tasks, and its name starts a new group."""
    tube = broker.tube("t")
    group = tube.group("g")
    group.put("x", address="a", ttl=1)
    group.on_end("end")
    group.start()
    clock.advance(1)
    with pytest.raises(penstock.NotFound):
        group.put("y", address="a")
    assert tube.put("z", address="a", group="g").id > 1
    assert group.wait(0) == "done"
    assert drain(tube) == ["end"]
    tube.group("g").start()
    assert drain(tube) == ["z"]
