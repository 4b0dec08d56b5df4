"""delete, peek and tasks: by anyone, in any state (rule 4)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, facts, refused, tasks
from tests.support.verbs import KINDS, put_into, take


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_task_is_gone(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    task = tube.put("x")
    assert tube.delete(task) is None
    assert task.status is penstock.Status.DONE
    assert (tasks(tube), calls(tube)) == ({"done": 1}, {"put": 1, "delete": 1})
    assert tube.take(0) is None


@pytest.mark.parametrize("state", ["ready", "taken", "delayed", "buried"])
def test_anyone_may_delete_in_any_state(broker: penstock.Broker, connect: Connect, state: str) -> None:
    tube = broker.tube("t")
    put_into(tube, state)
    connect().tube("t").delete(1)
    assert tasks(tube) == {"done": 1}


def test_the_former_holder_cannot_ack_a_deleted_task(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    connect().tube("t").delete(task.id)
    with pytest.raises(penstock.NotTaken):
        task.ack()
    assert calls(tube) == {"put": 1, "take": 1, "delete": 1}


def test_a_deleted_task_cannot_be_deleted_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.delete(1)
    with pytest.raises(penstock.NotFound):
        tube.delete(1)


def test_peek_changes_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    before = everything(tube)
    assert tube.peek(1).data == "x"
    assert everything(tube) == before


def test_anyone_may_peek_at_a_taken_task(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    task = take(tube)
    assert facts(connect().tube("t").peek(1)) == facts(task)


@pytest.mark.parametrize("id", [-1, 0, 2, 2**53 - 1])
def test_peek_at_an_unknown_id_is_not_found(broker: penstock.Broker, id: int) -> None:
    tube = broker.tube("mail")
    tube.put("x")
    with pytest.raises(penstock.NotFound, match=rf"(?s)(?=.*{id})(?=.*mail)"):
        tube.peek(id)


def test_peek_shows_a_due_task_as_ready(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", delay=3)
    clock.advance(3)
    assert tube.peek(1).status is penstock.Status.READY


def test_peek_shows_a_task_whose_lease_lapsed_as_ready(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=3)
    tube.put("x")
    take(tube)
    clock.advance(3)
    assert tube.peek(1).status is penstock.Status.READY


def test_tasks_lists_all_in_id_order(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"pri": 9}), ("b", {"delay": 5}), "c", "d"])
    take(tube)
    tube.bury(4)
    assert [(task.id, str(task.status)) for task in tube.tasks()] == [(1, "r"), (2, "~"), (3, "t"), (4, "!")]


@pytest.mark.parametrize(("status", "ids"), [("r", [3]), ("t", [1]), ("~", [2]), ("!", [4]), ("-", [])])
def test_tasks_of_one_status(broker: penstock.Broker, status: str, ids: list[int]) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", ("b", {"delay": 5}), "c", "d"])
    tube.bury(4)
    take(tube)
    assert [task.id for task in tube.tasks(status)] == ids
    assert [task.id for task in tube.tasks(penstock.Status(status))] == ids


def test_tasks_that_wait_in_their_micro_queue_are_listed_as_ready(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    tube.put_many(["a", "b", "c"], utube="u")
    take(tube)
    assert [task.id for task in tube.tasks("r")] == [2, 3]


def test_tasks_come_in_pages(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(range(5))
    assert [task.id for task in tube.tasks(limit=2)] == [1, 2]
    assert [task.id for task in tube.tasks(limit=2, after=2)] == [3, 4]
    assert [task.id for task in tube.tasks(limit=2, after=4)] == [5]
    assert tube.tasks(after=5) == []


def test_the_default_page_has_a_hundred(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(range(101))
    assert len(tube.tasks()) == 100


def test_tasks_past_their_ttl_are_not_listed(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"ttl": 3}), "b", ("c", {"ttl": 3, "delay": 1})])
    clock.advance(3)
    assert [task.data for task in tube.tasks()] == ["b", "c"]


def test_tasks_with_a_bad_argument_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    refused(["x", 1], lambda status: tube.tasks(status))
    refused([-1, True, 1.5], lambda limit: tube.tasks(limit=limit))
    refused(["1", 2**53], lambda after: tube.tasks(after=after))
