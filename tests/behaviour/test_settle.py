"""ack, fail, touch, release: only by the holder of the live lease (rule 3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, tasks
from tests.support.verbs import KINDS, LEASED_VERBS, Verb, take

leased_verb = pytest.mark.parametrize("verb", LEASED_VERBS.values(), ids=LEASED_VERBS)


@pytest.fixture
def tube(broker: penstock.Broker) -> penstock.Tube:
    return broker.tube("t", ttr=5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_acked_task_is_gone(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    task = take(tube)
    assert tube.ack(task) is None
    assert task.status is penstock.Status.DONE
    assert tasks(tube) == {"done": 1}
    with pytest.raises(penstock.NotFound):
        tube.peek(task.id)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_task_is_gone(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x")
    task = take(tube)
    assert tube.fail(task, "no such mailbox", code=550) is None
    assert task.status is penstock.Status.DONE
    assert tasks(tube) == {"done": 1}
    assert calls(tube) == {"put": 1, "take": 1, "fail": 1}


def test_ack_takes_a_result(tube: penstock.Tube) -> None:
    tube.put("x")
    tube.ack(take(tube), result={"sent": True})
    assert tasks(tube) == {"done": 1}


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        (lambda task: task.ack(), "-"),
        (lambda task: task.fail("broken"), "-"),
        (lambda task: task.release(), "r"),
        (lambda task: task.release(delay=2), "~"),
        (lambda task: task.bury("odd"), "!"),
        (lambda task: task.touch(1), "t"),
    ],
    ids=["ack", "fail", "release", "release with delay", "bury", "touch"],
)
def test_the_verbs_of_a_task_set_its_status(
    tube: penstock.Tube, verb: Callable[[penstock.Task], object], status: str
) -> None:
    tube.put("x")
    task = take(tube)
    assert verb(task) is None
    assert task.status == status


@leased_verb
def test_the_holder_may_name_the_task_by_its_id(tube: penstock.Tube, verb: Verb) -> None:
    tube.put("x")
    verb(tube, take(tube).id)
    assert len(calls(tube)) == 3


@leased_verb
def test_the_holder_may_pass_the_task_that_put_returned(tube: penstock.Tube, verb: Verb) -> None:
    task = tube.put("x")
    take(tube)
    verb(tube, task)
    assert len(calls(tube)) == 3


@leased_verb
def test_an_unknown_id_is_not_taken(tube: penstock.Tube, verb: Verb) -> None:
    tube.put("x")
    take(tube)
    before = everything(tube)
    for id in (-1, 0, 2, 2**53 - 1):
        with pytest.raises(penstock.NotTaken, match=str(id)):
            verb(tube, id)
    assert everything(tube) == before


@leased_verb
@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "acked", "deleted"])
def test_a_task_that_nobody_holds_is_not_taken(tube: penstock.Tube, verb: Verb, state: str) -> None:
    id = tube.put("x", delay=3 if state == "delayed" else 0).id
    if state == "buried":
        tube.bury(id)
    if state == "acked":
        take(tube).ack()
    if state == "deleted":
        tube.delete(id)
    before = everything(tube)
    with pytest.raises(penstock.NotTaken):
        verb(tube, id)
    assert everything(tube) == before


@leased_verb
def test_another_session_cannot_settle(tube: penstock.Tube, connect: Connect, verb: Verb) -> None:
    tube.put("x")
    task = take(tube)
    before = everything(tube)
    with pytest.raises(penstock.NotTaken):
        verb(connect().tube("t"), task.id)
    with pytest.raises(penstock.NotTaken):
        verb(connect().tube("t"), task)
    assert everything(tube) == before


@leased_verb
def test_the_lease_is_dead_at_its_deadline(tube: penstock.Tube, clock: Clock, verb: Verb) -> None:
    tube.put("x")
    task = take(tube)
    clock.advance(5)
    with pytest.raises(penstock.NotTaken):
        verb(tube, task)
    assert tasks(tube) == {"ready": 1, "total": 1}
    assert calls(tube) == {"put": 1, "take": 1, "ttr": 1}


@leased_verb
def test_the_lease_lives_until_its_deadline(tube: penstock.Tube, clock: Clock, verb: Verb) -> None:
    tube.put("x")
    task = take(tube)
    clock.advance(4.999)
    verb(tube, task)
    assert len(calls(tube)) == 3


@leased_verb
def test_an_old_task_never_settles_the_next_hand_out_of_its_own_session(tube: penstock.Tube, verb: Verb) -> None:
    tube.put("x")
    old = take(tube)
    tube.release(old.id)
    new = take(tube)
    before = everything(tube)
    with pytest.raises(penstock.NotTaken):
        verb(tube, old)
    assert everything(tube) == before
    verb(tube, new)


@leased_verb
def test_a_late_worker_never_settles_the_hand_out_of_another(
    tube: penstock.Tube, connect: Connect, clock: Clock, verb: Verb
) -> None:
    tube.put("x")
    late = take(tube)
    clock.advance(5)
    theirs = connect().tube("t")
    task = take(theirs)
    before = everything(tube)
    with pytest.raises(penstock.NotTaken):
        verb(tube, late)
    with pytest.raises(penstock.NotTaken):
        verb(tube, late.id)
    assert everything(tube) == before
    task.ack()


@leased_verb
def test_a_task_of_another_tube_is_refused(tube: penstock.Tube, broker: penstock.Broker, verb: Verb) -> None:
    other = broker.tube("other", ttr=5)
    tube.put("x")
    other.put("y")
    task = take(tube)
    take(other)
    with pytest.raises(penstock.PenstockError):
        verb(other, task)
    assert (tasks(tube), tasks(other)) == ({"taken": 1, "total": 1}, {"taken": 1, "total": 1})


def test_the_error_names_the_task_and_the_tube(tube: penstock.Tube) -> None:
    with pytest.raises(penstock.NotTaken, match=r"(?s)(?=.*77)(?=.*\bt\b)"):
        tube.ack(77)


def test_ack_many_returns_which_were_acked(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many([("lapsed", {"ttr": 1}), "a", "b", "ready"])
    lapsed, a, b = tube.take_many(3)
    clock.advance(1)
    assert tube.ack_many([lapsed, a, 99, b.id, 4, a]) == [False, True, False, True, False, False]
    assert [task.data for task in tube.tasks()] == ["lapsed", "ready"]
    assert a.status is penstock.Status.DONE
    assert calls(tube)["ack"] == 2


def test_ack_many_of_nothing_returns_an_empty_list(tube: penstock.Tube) -> None:
    assert tube.ack_many([]) == []


@pytest.mark.parametrize("bad", ["1", 1.0, True, None, 2**53])
def test_a_bad_id_stops_all_of_ack_many(tube: penstock.Tube, bad: int) -> None:
    tube.put("x")
    task = take(tube)
    with pytest.raises(penstock.BadValue):
        tube.ack_many([task, bad])
    assert tasks(tube) == {"taken": 1, "total": 1}
