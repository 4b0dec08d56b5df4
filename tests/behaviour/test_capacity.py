"""capacity: the number of tasks that a tube stores (rule 12)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.threads import begin
from tests.support.verbs import KINDS, put_into, take


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_tube_refuses_a_put(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("mail", kind=kind, capacity=2)
    tube.put_many(["a", "b"])
    with pytest.raises(penstock.TubeFull, match=r"(?s)(?=.*mail)(?=.*\b2\b)"):
        tube.put("c")
    assert (tasks(tube), calls(tube)) == ({"ready": 2, "total": 2}, {"put": 2})


@pytest.mark.parametrize("state", ["ready", "taken", "delayed", "buried"])
def test_capacity_counts_tasks_in_every_state(broker: penstock.Broker, state: str) -> None:
    tube = broker.tube("t", capacity=1)
    put_into(tube, state)
    with pytest.raises(penstock.TubeFull):
        tube.put("y")


@pytest.mark.parametrize("leave", ["ack", "fail", "delete", "truncate"])
def test_a_task_that_leaves_frees_capacity(broker: penstock.Broker, leave: str) -> None:
    tube = broker.tube("t", capacity=1)
    tube.put("x")
    task = take(tube)
    if leave == "ack":
        task.ack()
    if leave == "fail":
        task.fail("broken")
    if leave == "delete":
        tube.delete(1)
    if leave == "truncate":
        tube.truncate()
    assert tube.put("y").status is penstock.Status.READY


def test_expired_tasks_make_room(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", capacity=2_500)
    tube.put_many(range(2_500), ttl=1)
    clock.advance(1)
    tube.put_many(range(2_500))
    assert tasks(tube) == {"ready": 2_500, "done": 2_500, "total": 2_500}


def test_put_many_needs_room_for_all(broker: penstock.Broker) -> None:
    tube = broker.tube("t", capacity=3)
    tube.put("a")
    with pytest.raises(penstock.TubeFull):
        tube.put_many(["b", "c", "d"])
    assert tasks(tube) == {"ready": 1, "total": 1}
    tube.put_many(["b", "c"])
    assert tasks(tube) == {"ready": 3, "total": 3}


def test_a_refused_put_uses_no_capacity(broker: penstock.Broker) -> None:
    tube = broker.tube("t", capacity=1)
    tube.put("a")
    with pytest.raises(penstock.TubeFull):
        tube.put("b")
    take(tube).ack()
    tube.put("c")
    assert take(tube).data == "c"


def test_racing_puts_never_exceed_the_capacity(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t", kind="fifo", capacity=10)

    def fill(mine: penstock.Tube) -> int:
        stored = 0
        for number in range(10):
            try:
                mine.put(number)
                stored += 1
            except penstock.TubeFull:
                pass
        return stored

    handles = [connect().tube("t") for _ in range(4)]
    running = [begin(lambda handle=handle: fill(handle)) for handle in handles]  # type: ignore[misc]
    assert sum(future.result(timeout=60) for future in running) == 10
    assert tasks(tube) == {"ready": 10, "total": 10}


@pytest.mark.parametrize("kind", ["fifottl", "utubettl", "round"])
def test_a_put_that_stores_no_new_task_needs_no_room_even_in_a_tube_that_replies_overfilled(
    broker: penstock.Broker, kind: str
) -> None:
    tube = broker.tube("t", kind, capacity=1, period=1 if kind == "round" else None)
    asked, name = broker.tube("asked"), "id" if kind == "round" else "address"
    first = tube.put("old", **{name: "a"})  # type: ignore[arg-type]
    asked.put("question", reply_to="t")
    take(asked).ack()
    assert tube.stats().tasks.total == 2
    for data, how in (("ignored", "ignore"), ("new", "replace")):
        tube.put(data, on_duplicate=how, **{name: "a"})  # type: ignore[arg-type]
    assert tube.peek(first.id).data == "new"
    with pytest.raises(penstock.TubeFull, match="holds 2 of 1 tasks"):
        tube.put("another", **{name: "b"})  # type: ignore[arg-type]
    with pytest.raises(penstock.TubeFull, match="holds 2 of 1 tasks"):
        tube.put_many([("new", {name: "a"}), ("another", {name: "b"})], on_duplicate="replace")
    assert tube.stats().tasks.total == 2
