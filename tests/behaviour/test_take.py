"""take and take_many: the first ready task, for exactly one session (rule 2)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, facts, tasks
from tests.support.threads import begin
from tests.support.verbs import KINDS, take, take_all


@pytest.mark.parametrize("kind", KINDS)
def test_take_hands_out_the_first_task(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    clock.advance(2)
    task = take(tube)
    assert facts(task) == {
        "id": 1, "status": penstock.Status.TAKEN, "data": "x", "tube": "t", "pri": 0, "utube": None,
        "attempts": 1, "lease": task.lease, "created": clock.seconds - 2, "taken": clock.seconds, "due": None,
        "expires": None, "reason": None,
    }  # fmt: skip


def test_take_of_an_empty_tube_returns_none(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    assert tube.take(0) is None
    assert calls(tube) == {}


def test_a_taken_task_is_not_handed_out_again(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x")
    take(tube)
    assert tube.take(0) is None
    assert connect().tube("t").take(0) is None


def test_every_hand_out_counts_as_attempt_and_has_its_own_lease(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    first = take(tube)
    first.release()
    task = take(tube)
    assert task.attempts == 2
    assert task.lease > first.lease


def test_the_owner_is_recorded(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["x", "y"])
    take(tube)
    assert [session.held for session in broker.sessions() if session.held] == [[("t", 1)]]


def test_take_many_takes_up_to_count_in_order(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c"])
    assert [task.data for task in tube.take_many(2)] == ["a", "b"]
    assert [task.data for task in tube.take_many(2**31 - 1)] == ["c"]
    assert tube.take_many(2) == []
    assert tasks(tube) == {"taken": 3, "total": 3}


def test_max_pri_leaves_less_urgent_tasks(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("low", {"pri": 6}), ("middle", {"pri": 5}), ("high", {"pri": 0})])
    assert [task.data for task in tube.take_many(3, max_pri=5)] == ["high", "middle"]
    assert tube.take(0, max_pri=5) is None
    assert take_all(tube) == ["low"]


def test_max_pri_in_micro_queues(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put("a", utube="u", pri=3)
    tube.put("b", utube="v", pri=1)
    assert [task.data for task in tube.take_many(2, max_pri=1)] == ["b"]


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_max_pri_needs_an_order_led_by_pri(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    with pytest.raises(penstock.UnsupportedOption, match="max_pri"):
        tube.take(0, max_pri=1)
    with pytest.raises(penstock.UnsupportedOption, match="max_pri"):
        tube.take_many(1, max_pri=1)
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_max_pri_is_refused_where_tasks_age(broker: penstock.Broker) -> None:
    tube = broker.tube("t", aging=5)
    with pytest.raises(penstock.UnsupportedOption, match="max_pri"):
        tube.take(0, max_pri=1)


def test_racing_takers_never_share_a_task(broker: penstock.Broker, connect: Connect) -> None:
    broker.tube("t", kind="fifo").put_many(range(120))
    takers = [connect().tube("t") for _ in range(4)]

    def work(tube: penstock.Tube) -> list[int]:
        ids = []
        while (task := tube.take(0)) is not None:
            ids.append(task.id)
        return ids

    running = [begin(lambda tube=tube: work(tube)) for tube in takers]  # type: ignore[misc]
    taken = [id for future in running for id in future.result(timeout=60)]
    assert sorted(taken) == list(range(1, 121))
