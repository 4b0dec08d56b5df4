"""Micro-queues: one taken task at a time, in order; other micro-queues are not held up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.verbs import UTUBE_KINDS, drain, take, take_all

both_kinds = pytest.mark.parametrize("kind", UTUBE_KINDS)
Freeing = Callable[[penstock.Tube, penstock.Task], object]


@both_kinds
def test_one_task_of_a_micro_queue_is_taken_at_a_time(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"], utube="u")
    assert take_all(tube) == ["a"]
    assert tube.take(0) is None


@both_kinds
def test_other_micro_queues_continue(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many([(f"{name}{number}", {"utube": name}) for number in (1, 2) for name in "abc"])
    assert take_all(tube) == ["a1", "b1", "c1"]


@both_kinds
def test_a_micro_queue_keeps_its_order(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(range(5), utube="u")
    assert drain(tube) == [0, 1, 2, 3, 4]


@both_kinds
@pytest.mark.parametrize(
    "free",
    [
        lambda tube, task: task.ack(),
        lambda tube, task: task.fail("broken"),
        lambda tube, task: task.bury("odd"),
        lambda tube, task: tube.bury(task.id),
        lambda tube, task: tube.delete(task.id),
        lambda tube, task: tube.ack_many([task]),
    ],
    ids=["ack", "fail", "bury", "bury by id", "delete", "ack_many"],
)
def test_a_micro_queue_frees_when_its_task_is_removed(broker: penstock.Broker, kind: str, free: Freeing) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b", "c"], utube="u")
    free(tube, take(tube))
    assert take_all(tube) == ["b"]


@both_kinds
@pytest.mark.parametrize("limit", [1, 2])
def test_every_micro_queue_moves_up_when_many_are_acked(broker: penstock.Broker, kind: str, limit: int) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=limit)
    tube.put_many([(f"{name}{number}", {"utube": name}) for name in "abc" for number in range(limit + 1)])
    tube.put("addressed", utube="a", address="x")
    held = tube.take_many(100)
    assert [task.data for task in held] == [f"{name}{number}" for name in "abc" for number in range(limit)]
    assert tube.ack_many(held) == [True] * len(held)
    last = tube.take_many(100)
    assert [task.data for task in last] == [f"{name}{limit}" for name in "abc"] + (["addressed"] if limit > 1 else [])
    tube.ack_many(last)
    assert drain(tube) == (["addressed"] if limit == 1 else [])
    assert broker.check() == []


@both_kinds
def test_a_micro_queue_frees_on_release_and_the_first_comes_again(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"], utube="u")
    take(tube).release()
    assert take_all(tube) == ["a"]


@both_kinds
def test_a_micro_queue_frees_at_session_end(broker: penstock.Broker, connect: Connect, kind: str) -> None:
    tube, theirs = broker.tube("t", kind=kind), connect()
    tube.put_many(["a", "b"], utube="u")
    take(theirs.tube("t"))
    assert tube.take(0) is None
    theirs.close()
    assert drain(tube) == ["a", "b"]


@both_kinds
def test_a_micro_queue_frees_on_truncate(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("a", utube="u")
    take(tube)
    tube.truncate()
    tube.put("b", utube="u")
    assert take_all(tube) == ["b"]


def test_a_micro_queue_frees_on_ttr(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl", ttr=3)
    tube.put_many(["a", "b"], utube="u")
    take(tube)
    clock.advance(2.999)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert take_all(tube) == ["a"]


def test_a_micro_queue_frees_when_its_first_task_expires(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put_many([("a", {"ttl": 3}), ("b", {})], utube="u")
    clock.advance(3)
    assert take_all(tube) == ["b"]


def test_a_micro_queue_frees_when_a_taken_task_returns_expired(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put_many([("a", {"ttl": 2, "ttr": 4}), ("b", {})], utube="u")
    take(tube)
    clock.advance(4)
    assert take_all(tube) == ["b"]


def test_a_micro_queue_frees_when_a_task_used_up_its_attempts(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube", max_attempts=1)
    tube.put_many(["a", "b"], utube="u")
    take(tube).release()
    assert take_all(tube) == ["b"]


def test_a_task_released_with_delay_does_not_block(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put_many(["a", "b", "c"], utube="u")
    take(tube).release(delay=3)
    second = take(tube)
    assert second.data == "b"
    clock.advance(3)
    assert tube.take(0) is None
    second.ack()
    assert drain(tube) == ["a", "c"]


def test_a_delayed_task_does_not_block(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put("a", utube="u", delay=3)
    tube.put("b", utube="u")
    assert take_all(tube) == ["b"]


def test_a_due_task_passes_the_head_of_its_micro_queue(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put("a", utube="u", delay=3)
    tube.put("b", utube="u")
    clock.advance(3)
    assert take_all(tube) == ["a"]


@both_kinds
def test_a_buried_task_does_not_block(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"], utube="u")
    tube.bury(1)
    assert take_all(tube) == ["b"]


@both_kinds
def test_a_kicked_task_displaces_a_younger_head(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"], utube="u")
    take(tube).bury("odd")
    tube.kick()
    assert take_all(tube) == ["a"]


@both_kinds
def test_a_task_kicked_into_a_busy_micro_queue_waits(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"], utube="u")
    tube.bury(1)
    second = take(tube)
    tube.kick()
    assert tube.take(0) is None
    second.ack()
    assert take_all(tube) == ["a"]


@both_kinds
@pytest.mark.parametrize("remove", ["bury", "delete"])
def test_a_task_removed_behind_the_head_is_skipped(broker: penstock.Broker, kind: str, remove: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b", "c"], utube="u")
    head = take(tube)
    getattr(tube, remove)(2)
    head.ack()
    assert take_all(tube) == ["c"]


def test_a_task_that_expires_behind_the_head_is_skipped(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put_many(["a", ("b", {"ttl": 3}), "c"], utube="u")
    head = take(tube)
    clock.advance(3)
    head.ack()
    assert take_all(tube) == ["c"]


@both_kinds
def test_tasks_without_a_micro_queue_share_one(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b", ("c", {"utube": "u"})])
    assert take_all(tube) == ["a", "c"]


@both_kinds
def test_a_number_and_its_text_name_the_same_micro_queue(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    assert (tube.put("a", utube=1).utube, tube.put("b", utube="1").utube) == ("1", "1")
    assert take_all(tube) == ["a"]


@pytest.mark.parametrize("other", ["U", "u ", "ü", "u\u0308", "01"])
def test_labels_that_look_alike_are_different_micro_queues(broker: penstock.Broker, other: str) -> None:
    tube = broker.tube("t", kind="utube")
    tube.put_many([("a", {"utube": "u"}), ("b", {"utube": "1"}), ("c", {"utube": other})])
    assert take_all(tube) == ["a", "b", "c"]


LABELS = ("a b", "{x}", "'; DROP TABLE tasks; --", "../x", "x" * 200, "é" * 100, "😀", "%s", -7, 0, 2**64)


def test_a_label_is_any_visible_text(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    for label in LABELS:
        tube.put_many(["a", "b"], utube=label)
        task = take(tube)
        assert task.utube == str(label)
        assert tube.take(0) is None
        task.ack()
        assert take_all(tube) == ["b"]


def test_the_most_urgent_of_a_micro_queue_is_its_head(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put_many([("c", {"pri": 9}), ("a", {"pri": 1}), ("b", {"pri": 5})], utube="u")
    assert drain(tube) == ["a", "b", "c"]


def test_a_more_urgent_arrival_demotes_the_head(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put("b", utube="u", pri=5)
    tube.put("a", utube="u", pri=1)
    assert take_all(tube) == ["a"]
    assert tasks(tube) == {"ready": 1, "taken": 1, "total": 2}


@pytest.mark.parametrize("way", ["release", "ttr", "session end", "release_all"])
def test_a_returning_task_is_behind_a_more_urgent_one(broker: penstock.Broker, clock: Clock, way: str) -> None:
    tube, session = broker.tube("t", kind="utubettl", ttr=3), broker.session()
    tube.put("b", utube="u", pri=5)
    task = take(session.tube("t"))
    tube.put("a", utube="u", pri=1)
    assert tube.take(0) is None
    if way == "release":
        task.release()
    if way == "ttr":
        clock.advance(3)
    if way == "session end":
        session.close()
    if way == "release_all":
        tube.release_all()
    assert take_all(tube) == ["a"]


def test_heads_of_micro_queues_come_by_priority(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put_many(
        [("u1", {"utube": "u", "pri": 5}), ("v1", {"utube": "v", "pri": 1}), ("u2", {"utube": "u", "pri": 1})]
    )
    assert take_all(tube) == ["v1", "u2"]


@both_kinds
def test_ready_counts_those_behind_the_head_too(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(range(4), utube="u")
    take(tube)
    assert tasks(tube) == {"ready": 3, "taken": 1, "total": 4}
