"""put and put_many: what they store and return."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, facts, tasks
from tests.support.threads import begin
from tests.support.verbs import KINDS, drain, take


def test_put_returns_the_task(broker: penstock.Broker, clock: Clock) -> None:
    task = broker.tube("mail").put({"to": "ada"})
    assert facts(task) == {
        "id": 1, "status": penstock.Status.READY, "data": {"to": "ada"}, "tube": "mail", "pri": 0, "utube": None,
        "attempts": 0, "lease": 0, "created": clock.seconds, "taken": None, "due": None, "expires": None,
        "reason": None,
    }  # fmt: skip


def test_a_plain_task_has_no_address_group_or_progress(broker: penstock.Broker) -> None:
    task = broker.tube("mail").put("x")
    assert (task.address, task.group, task.progress) == (None, None, None)


def test_a_task_unpacks_to_id_status_and_data(broker: penstock.Broker) -> None:
    id, status, data = broker.tube("mail").put("x")
    assert (id, status, data) == (1, "r", "x")


def test_a_task_accepts_no_other_attributes(broker: penstock.Broker) -> None:
    with pytest.raises(AttributeError):
        broker.tube("mail").put("x").colour = "red"  # type: ignore[attr-defined]


def test_peek_returns_the_task_that_put_returned(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    task = tube.put("x", pri=3, ttl=10, ttr=5, delay=2, max_attempts=4)
    assert facts(tube.peek(task.id)) == facts(task)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_come_out_in_put_order(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    for data in "abc":
        tube.put(data)
    assert drain(tube) == ["a", "b", "c"]


def test_ids_count_from_one_in_each_tube(broker: penstock.Broker) -> None:
    first, second = broker.tube("first"), broker.tube("second")
    assert [first.put("x").id, first.put("x").id, second.put("x").id] == [1, 2, 1]


def test_the_id_of_an_acked_task_is_not_used_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    former = tube.put("x")
    take(tube).ack()
    assert tube.put("y").id > former.id


def test_the_ids_of_truncated_tasks_are_not_used_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["x", "y"])
    tube.truncate()
    assert tube.put("z").id > 2


def test_put_options_of_none_are_not_given(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    options = ("pri", "ttl", "ttr", "delay", "utube", "id", "rank", "address", "group", "reply_to", "max_attempts")
    task = tube.put("x", **dict.fromkeys(options))  # type: ignore[arg-type]
    assert (task.pri, task.utube, task.expires, task.due) == (0, None, None, None)


def test_put_many_returns_the_tasks_in_order(broker: penstock.Broker) -> None:
    stored = broker.tube("t").put_many(["a", "b", "c"])
    assert [(task.id, task.status, task.data) for task in stored] == [(1, "r", "a"), (2, "r", "b"), (3, "r", "c")]


def test_put_many_takes_options_for_each_and_for_all(broker: penstock.Broker) -> None:
    stored = broker.tube("t").put_many(["a", ("b", {"pri": 1}), ("c", {"delay": 2}), ("d", {"pri": None})], pri=7)
    assert [(task.data, task.pri, str(task.status)) for task in stored] == [
        ("a", 7, "r"), ("b", 1, "r"), ("c", 7, "~"), ("d", 7, "r"),
    ]  # fmt: skip


def test_put_many_keeps_the_order_of_tasks_with_different_options(broker: penstock.Broker) -> None:
    given = [(0, {"address": "a"}), 1, (2, {"pri": 1}), (3, {"address": None}), (4, {"address": "b"}), 5, (6, {})]
    stored = broker.tube("t").put_many(given, pri=7)
    assert [(task.data, task.address, task.pri) for task in stored] == [
        (0, "a", 7), (1, None, 7), (2, None, 1), (3, None, 7), (4, "b", 7), (5, None, 7), (6, None, 7),
    ]  # fmt: skip


def test_put_many_takes_any_iterable(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(number for number in range(3))
    assert drain(tube) == [0, 1, 2]


def test_put_many_of_nothing_stores_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    assert tube.put_many([]) == []
    assert (tasks(tube), calls(tube)) == ({}, {})


@pytest.mark.parametrize(
    "bad", [float("nan"), ("x", {"pri": -1}), ("x", {"colour": 1}), ("x",), ("x", 1), ("x", {}, 2)]
)
def test_one_bad_task_stops_all_of_put_many(broker: penstock.Broker, bad: object) -> None:
    tube = broker.tube("t")
    with pytest.raises(penstock.BadValue):
        tube.put_many(["good", bad, "good"])
    assert (tasks(tube), calls(tube)) == ({}, {})


@pytest.mark.parametrize(("given", "stored"), [(list, 0), (tuple, 0), (iter, 10_000)])
def test_put_many_of_more_than_a_chunk_first_checks_all_items_of_a_list(
    broker: penstock.Broker, given: Callable[[list[object]], Iterable[object]], stored: int
) -> None:
    tube = broker.tube("t", kind="fifo")
    with pytest.raises(penstock.BadValue):
        tube.put_many(given([*range(10_000), object()]))
    assert tube.stats().tasks.total == stored


def test_put_many_of_more_than_a_chunk_keeps_the_order(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    stored = tube.put_many(range(10_001))
    assert [(task.id, task.data) for task in stored] == [(number + 1, number) for number in range(10_001)]
    assert tasks(tube) == {"ready": 10_001, "total": 10_001}
    assert [task.id for task in tube.tasks(limit=20_000, after=1)] == list(range(2, 10_002))


def test_threads_may_share_a_handle(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    running = [begin(lambda: [tube.put("x").id for _ in range(25)]) for _ in range(4)]
    ids = [future.result(timeout=60) for future in running]
    assert [sorted(own) for own in ids] == ids
    assert len({id for own in ids for id in own}) == 100


def test_another_broker_sees_what_was_put(broker: penstock.Broker, connect: Connect) -> None:
    broker.tube("t").put("x")
    assert take(connect().tube("t")).data == "x"
