"""bury and kick (rules 4 and 6)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, facts, tasks
from tests.support.verbs import FREE_VERBS, KINDS, Verb, drain, put_into, take, take_all


@pytest.mark.parametrize("kind", KINDS)
def test_a_buried_task_is_not_handed_out(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    task = tube.put("x")
    assert tube.bury(task, "odd") is None
    assert task.status is penstock.Status.BURIED
    assert tube.take(0) is None
    assert (tube.peek(1).status, tube.peek(1).reason) == ("!", "odd")


@pytest.mark.parametrize("state", ["ready", "taken", "delayed", "buried"])
def test_anyone_may_bury_in_any_state(broker: penstock.Broker, connect: Connect, state: str) -> None:
    tube = broker.tube("t")
    put_into(tube, state)
    connect().tube("t").bury(1)
    assert tasks(tube) == {"buried": 1, "total": 1}


def test_a_second_bury_counts_and_replaces_the_reason(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.bury(1, "first")
    tube.bury(1, "second")
    assert calls(tube) == {"put": 1, "bury": 2}
    assert tube.peek(1).reason == "second"


def test_the_former_holder_cannot_ack_a_buried_task(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    connect().tube("t").bury(task.id)
    with pytest.raises(penstock.NotTaken):
        task.ack()
    with pytest.raises(penstock.NotTaken):
        tube.ack(task.id)
    assert tasks(tube) == {"buried": 1, "total": 1}


@pytest.mark.parametrize("verb", FREE_VERBS.values(), ids=FREE_VERBS)
@pytest.mark.parametrize("end", ["lapsed", "released", "acked", "handed out again"])
def test_bury_and_delete_with_a_dead_lease_are_not_taken(
    broker: penstock.Broker, clock: Clock, verb: Verb, end: str
) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put("x")
    task = take(tube)
    if end == "lapsed":
        clock.advance(5)
    if end == "acked":
        tube.ack(1)
    if end in ("released", "handed out again"):
        tube.release(1)
    if end == "handed out again":
        take(tube)
    before = everything(tube)
    with pytest.raises(penstock.NotTaken):
        verb(tube, task)
    assert everything(tube) == before


@pytest.mark.parametrize("verb", FREE_VERBS.values(), ids=FREE_VERBS)
def test_bury_and_delete_with_the_live_lease_work(broker: penstock.Broker, verb: Verb) -> None:
    tube = broker.tube("t")
    tube.put("x")
    verb(tube, take(tube))
    assert "taken" not in tasks(tube)


@pytest.mark.parametrize("verb", FREE_VERBS.values(), ids=FREE_VERBS)
def test_bury_and_delete_of_an_unknown_id_are_not_found(broker: penstock.Broker, verb: Verb) -> None:
    tube = broker.tube("t")
    tube.put("x")
    before = everything(tube)
    for id in (-1, 0, 2, 2**53 - 1):
        with pytest.raises(penstock.NotFound, match=str(id)):
            verb(tube, id)
    assert everything(tube) == before


def test_kick_follows_take_order_not_the_order_of_burying(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([("c", {"pri": 5}), ("a", {"pri": 1}), ("b", {"pri": 3})])
    for id in (1, 3, 2):
        tube.bury(id)
    assert tube.kick(2) == 2
    assert take_all(tube) == ["a", "b"]
    assert tube.peek(1).status is penstock.Status.BURIED


def test_kick_returns_how_many_tasks_were_kicked(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c"])
    tube.bury(1)
    tube.bury(2)
    assert (tube.kick(9), tube.kick(9)) == (2, 0)
    assert calls(tube) == {"put": 3, "bury": 2, "kick": 2}


def test_kick_defaults_to_one_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    tube.bury(1)
    tube.bury(2)
    assert tube.kick() == 1
    assert tasks(tube) == {"ready": 1, "buried": 1, "total": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kicked_task_is_back_at_its_old_place(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b"])
    take(tube).bury("odd")
    tube.kick()
    assert drain(tube) == ["a", "b"]


def test_kick_forgets_attempts_and_reason_but_not_the_lease_number(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    held = take(tube)
    held.bury("odd")
    tube.kick()
    kicked = tube.peek(1)
    assert (kicked.status, kicked.attempts, kicked.reason) == ("r", 0, None)
    # A pool that was rebuilt in between has raised the lease; otherwise it is the same.
    assert held.lease <= kicked.lease < take(tube).lease


def test_bury_and_kick_do_not_change_the_ttl(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    put = tube.put("x", ttl=5)
    clock.advance(2)
    tube.bury(1)
    clock.advance(2)
    tube.kick()
    assert facts(tube.peek(1)) == facts(put)
    clock.advance(1)
    assert tube.take(0) is None


def test_a_buried_task_past_its_ttl_is_not_kicked(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=5)
    tube.bury(1)
    clock.advance(5)
    assert tube.kick() == 0
    assert tasks(tube) == {"done": 1}


@pytest.mark.parametrize("count", [-1, True, 1.5, "1", float("nan")])
def test_kick_of_a_bad_count_is_refused(broker: penstock.Broker, count: int) -> None:
    tube = broker.tube("t")
    tube.put("x")
    tube.bury(1)
    with pytest.raises(penstock.BadValue):
        tube.kick(count)
    assert tasks(tube) == {"buried": 1, "total": 1}
