"""Sharded tubes: no order, otherwise like every tube, whether the store splits them or not."""

from __future__ import annotations

from typing import cast

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import drain, take

SHARDS = 3


@pytest.fixture
def tube(broker: penstock.Broker) -> penstock.Tube:
    """A sharded tube with tasks in every shard."""
    tube = broker.tube("t", shards=SHARDS)
    for n in range(2 * SHARDS):
        tube.put(n)
    return tube


def per_utube(broker: penstock.Broker, queues: int = 9, each: int = 2) -> penstock.Tube:
    tube = broker.tube("micro_queues", kind="utubettl", shards=SHARDS)
    tube.put_many((f"{queue}{place}", {"utube": queue}) for place in range(each) for queue in range(queues))
    return tube


def replied(broker: penstock.Broker) -> list[int]:
    """The ids in all replies."""
    return sorted(cast("dict[str, int]", task.data)["id"] for task in broker.tube("replies").take_many(20))


@pytest.mark.parametrize("value", [0, -1, 257, 1.5, "2", True])
def test_a_bad_number_of_shards_is_refused(broker: penstock.Broker, value: int) -> None:
    with pytest.raises(penstock.BadValue, match="shards"):
        broker.tube("t", shards=value)
    assert broker.tubes() == []


@pytest.mark.parametrize("option", ["capacity", "fair"])
def test_calls_that_need_the_whole_tube_are_refused(broker: penstock.Broker, option: str) -> None:
    with pytest.raises(penstock.UnsupportedOption, match=option):
        broker.tube("t", kind="utube", shards=2, **{option: True if option == "fair" else 9})  # type: ignore[arg-type]
    assert broker.tubes() == []


@pytest.mark.parametrize(("kind", "period"), [("round", 5), ("reliable", None)])
def test_a_kind_without_leases_has_no_shards(broker: penstock.Broker, kind: str, period: float | None) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="fifottl"):
        broker.tube("t", kind=kind, period=period, shards=2)
    assert broker.tubes() == []


def test_a_sharded_tube_has_no_groups(tube: penstock.Tube) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="shards=3"):
        tube.group("g")
    with pytest.raises(penstock.UnsupportedOption, match="shards=3"):
        tube.put_many(["x"], group="g")
    assert tasks(tube) == {"ready": 6, "total": 6}


def test_one_shard_means_no_shards(broker: penstock.Broker) -> None:
    assert broker.tube("t", shards=1, capacity=5).name == "t"
    assert [info.options for info in broker.tubes()] == [{"capacity": 5}]
    broker.tube("t").group("g").start()


def test_the_number_of_shards_cannot_be_changed(broker: penstock.Broker) -> None:
    broker.tube("t", shards=2)
    with pytest.raises(penstock.TubeMismatch, match="shards"):
        broker.tube("t", shards=3)
    assert broker.tube("t").put("x").data == "x"


def test_ids_are_unique_and_lead_to_their_tasks(tube: penstock.Tube) -> None:
    put = {task.id: task.data for task in tube.put_many(range(10, 20))}
    assert len(put) == 10
    assert {id: tube.peek(id).data for id in put} == put
    listed = tube.tasks()
    assert [task.id for task in listed] == sorted({task.id for task in listed})
    assert {task.id: task.data for task in listed}.items() >= put.items()
    assert max(put) + 300 not in tube
    with pytest.raises(penstock.NotFound):
        tube.delete(max(put) + 300)


def test_tasks_come_in_pages_of_ids(tube: penstock.Tube) -> None:
    pages = list[int]()
    while page := tube.tasks(limit=2, after=pages[-1] if pages else None):
        assert len(page) <= 2
        pages += [task.id for task in page]
    assert pages == [task.id for task in tube.tasks()]


def test_take_many_takes_from_every_shard(tube: penstock.Tube) -> None:
    held = tube.take_many(5)
    assert len({task.id for task in held}) == 5
    assert len(tube.take_many(5)) == 1
    assert tasks(tube) == {"taken": 6, "total": 6}
    assert tube.ack_many(held) == [True] * 5
    assert tube.ack_many(held) == [False] * 5
    assert calls(tube) == {"put": 6, "take": 6, "ack": 5}


def test_a_shard_keeps_the_order_of_its_tasks(broker: penstock.Broker) -> None:
    tube = broker.tube("t", shards=SHARDS)
    tube.put_many([("late", {"pri": 2}), ("soon", {"pri": 1}), ("later", {"pri": 2})])  # one call, one shard
    assert drain(tube) == ["soon", "late", "later"]


def test_every_verb_finds_its_shard(broker: penstock.Broker, tube: penstock.Tube) -> None:
    tube.on_change(lambda task, event: reported.append((task.data, event)))
    reported: list[tuple[object, str]] = []
    one, two, three, four, *_ = held = tube.take_many(6)
    session = next(session for session in broker.sessions() if session.held)
    assert sorted(session.held) == sorted(("t", task.id) for task in held)
    one.release(delay=5)
    two.bury("odd")
    three.fail("broken")
    four.touch(5)
    assert (one.status, two.status, three.status) == ("~", "!", "-")
    assert "odd" in tube.why(two.id)
    assert "session" in tube.why(four.id)
    tube.delete(one.id)
    assert reported[6:] == [
        (one.data, "release"), (two.data, "bury"), (three.data, "fail"), (four.data, "touch"), (one.data, "delete"),
    ]  # fmt: skip
    assert {(id, "take") for id in range(6)} == set(reported[:6])
    assert tube.release_all() == 3
    assert tasks(tube) == {"ready": 3, "buried": 1, "done": 2, "total": 4}
    with pytest.raises(penstock.NotTaken):
        four.ack()


def test_kick_covers_all_shards(tube: penstock.Tube) -> None:
    for task in tube.tasks():
        tube.bury(task)
    assert (tube.kick(), tube.kick(4), tube.kick(4)) == (1, 4, 1)
    assert tasks(tube) == {"ready": 6, "total": 6}


def test_deadlines_pass_in_every_shard(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", shards=SHARDS, ttr=2)
    for n in range(SHARDS):
        tube.put(n, ttl=5)
        tube.put(n, delay=1, ttl=8)
    assert len(tube.take_many(9)) == 3
    clock.advance(2)
    assert tasks(tube) == {"ready": 6, "total": 6}
    clock.advance(3)
    assert tasks(tube) == {"ready": 3, "done": 3, "total": 3}
    assert calls(tube) == {"put": 6, "take": 3, "ttr": 3, "delay": 3, "ttl": 3}


def test_micro_queues_stay_exclusive(broker: penstock.Broker, connect: Connect) -> None:
    tube, other = per_utube(broker), connect().tube("micro_queues")
    held = [*tube.take_many(5), *other.take_many(50)]
    assert sorted(task.utube or "" for task in held) == [str(queue) for queue in range(9)]
    assert all(task.data == f"{task.utube}0" for task in held)
    assert tube.take(0) is other.take(0) is None
    held[0].ack()
    assert take(other).data == f"{held[0].utube}1"


def test_tasks_without_a_micro_queue_share_one(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube", shards=SHARDS)
    for n in range(6):
        tube.put(n, reply_to="t")
    first = take(tube)
    assert tube.take(0) is None
    assert f"held by task {first.id}," in tube.why(tube.tasks("r")[0].id)
    first.ack()  # its reply is put into that one, too
    assert len(tube.take_many(9)) == 1


def test_an_address_is_unique(tube: penstock.Tube) -> None:
    put = tube.put_many((n, {"address": str(n)}) for n in range(10, 20))
    for n, task in enumerate(put, 10):
        with pytest.raises(penstock.DuplicateAddress):
            tube.put("x", address=str(n))
        assert tube.put("x", address=str(n), on_duplicate="ignore").id == task.id
    assert tube.put("new", address="15", on_duplicate="replace").id == put[5].id
    assert tube.peek(put[5].id).data == "new"


def test_an_outcome_is_found_and_waited_for(tube: penstock.Tube) -> None:
    for address in "abcdef":
        tube.put(address, address=address)
    waits = [begin(lambda address=address: tube.wait(address, 30)) for address in "abc"]  # type: ignore[misc]
    for task in tube.take_many(20):
        task.ack(task.data)
    assert [wait.result(30).result for wait in waits] == ["a", "b", "c"]
    assert [tube.wait(address, 0).result for address in "def"] == ["d", "e", "f"]


@pytest.mark.parametrize("address", ["a", "b", "c", "d"])
def test_an_outcome_of_a_micro_queues_task_is_found(broker: penstock.Broker, address: str) -> None:
    tube = per_utube(broker, queues=1, each=1)
    tube.put("x", utube=f"of {address}", address=address)
    for task in tube.take_many(9):
        task.ack(task.data)
    assert tube.wait(address, 0).result == "x"


def test_replies_have_the_ids_of_the_tube(broker: penstock.Broker, tube: penstock.Tube) -> None:
    ids = [tube.put("x", address=name, reply_to="replies").id for name in "abcdef"]
    broker.tube("replies", shards=2)
    assert tube.truncate() == 12
    assert replied(broker) == sorted(ids)


def test_replies_of_a_dropped_tube_have_its_ids(broker: penstock.Broker, tube: penstock.Tube) -> None:
    ids = [tube.put("x", address=name, reply_to="replies").id for name in "abcd"]
    tube.drop()
    assert replied(broker) == sorted(ids)
    with pytest.raises(penstock.NoSuchTube):
        tube.put("x")


def test_a_put_into_any_shard_wakes_a_taker(live: penstock.Broker) -> None:
    tube = live.tube("t", shards=SHARDS)
    for n in range(SHARDS + 1):
        taking = begin(lambda: tube.take(30))
        until(lambda: waiters(live, "t") == 1)
        with pytest.raises(penstock.TubeBusy, match="waiting"):
            tube.drop()
        tube.put(n)
        task = taking.result(30)
        assert task is not None
        assert task.data == n
        task.ack()
        assert waiters(live, "t") == 0


def test_a_pause_applies_to_all_shards(tube: penstock.Tube) -> None:
    tube.pause()
    assert tube.take(0) is None
    tube.resume()
    assert len(tube.take_many(9)) == 6


def test_the_end_of_a_session_releases_in_every_shard(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t", shards=SHARDS)
    for n in range(6):
        tube.put(n)
    other = connect()
    assert len(other.tube("t").take_many(6)) == 6
    other.close()
    assert len(tube.take_many(9)) == 6


def test_several_tubes_are_asked_in_order(broker: penstock.Broker, tube: penstock.Tube) -> None:
    first = broker.tube("first", shards=2)
    first.put("a")
    found = [broker.take(["first", "t"], 0), broker.take(["first", "t"], 0)]
    assert [task.tube for task in found if task] == ["first", "t"]


def test_drop_refuses_while_tasks_are_taken(broker: penstock.Broker, tube: penstock.Tube) -> None:
    held = take(tube)
    with pytest.raises(penstock.TubeBusy, match="taken tasks"):
        tube.drop()
    assert len(tube.take_many(9)) == 5  # it is not paused
    held.ack()
    assert tube.truncate() == 5
    tube.drop()
    assert broker.tubes() == []
    assert drain(broker.tube("t")) == []


def test_counters_of_several_tubes_are_read_together(broker: penstock.Broker) -> None:
    tubes = [broker.tube(name, shards=shards) for name, shards in (("a", 3), ("b", None), ("c", 2))]
    for number, tube in enumerate(tubes, 1):
        tube.put_many(range(number))
    found = broker.runtime.store.counters([tube.stored for tube in tubes])
    assert [found[tube.stored.no].counts.ready for tube in tubes] == [1, 2, 3]
