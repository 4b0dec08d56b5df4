"""Acks without listeners are not decoded: their answers and effects must equal those of settle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.core.lifecycle import Move
from penstock.core.results import GONE
from penstock.core.task import record_of
from penstock.operations.store_ops import settle
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from tests.support.threads import until
from tests.support.verbs import drain, take


@pytest.fixture
def broker(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    with penstock.connect(url, clock=clock) as broker:
        yield broker
        assert broker.check() == []


@pytest.mark.parametrize("listening", [False, True])
def test_each_move_is_answered_even_without_listeners(broker: penstock.Broker, clock: Clock, listening: bool) -> None:
    tube = broker.tube("t", ttr=5, max_attempts=3)
    tube.put_many([(name, options) for name in "abcdef" for options in [{"pri": 3}, {"ttl": 60}]])
    events: list[str] = []
    if listening:
        tube.on_change(lambda task, event: events.append(event))
    stale = take(tube)
    clock.advance(5)
    tasks = tube.take_many(9)
    late, failed, touched = tasks[1], tasks[2], tasks[3]
    late.release()
    again = take(tube)
    failed.release()
    move = Move("touch", touched.id, record_of(touched).owner, record_of(touched).lease, 0, progress=0.5)
    assert settle(tube.runtime, tube.stored, [move])[0] is not None
    with broker.session() as other:
        others = take(other.tube("t"))
        assert tube.ack_many([stale, late, *tasks[3:], others, 99]) == [False, False, *[True] * 6, False, False]
        assert tube.ack_many([tasks[4], again, again]) == [False, True, False]
        others.ack()
    assert tube.stats().calls.ack == 8
    assert events.count("ack") == (8 if listening else 0)
    assert [task.status for task in (touched, again)] == [penstock.Status.DONE] * 2


def test_tasks_with_relations_are_settled_with_all_effects(broker: penstock.Broker) -> None:
    tube, replies = broker.tube("t"), broker.tube("replies")
    tube.put_many(["plain", ("named", {"address": "a"}), ("answered", {"reply_to": "replies"})])
    assert tube.ack_many(tube.take_many(3)) == [True, True, True]
    assert tube.wait("a", 0).status == "done"
    assert drain(replies) == [{"id": 3, "address": None, "status": "done", "result": None}]


def test_results_are_kept(broker: penstock.Broker) -> None:
    tube = broker.tube("t", callback="http://127.0.0.1/x")
    options = [
        {"address": "ä"},
        {},
        {"address": "b", "pri": 9},
        {"address": "c", "reply_to": "replies"},
        {"address": "d"},
    ]
    tube.put_many([(n, given) for n, given in enumerate(options)])
    tasks = {task.data: task for task in tube.take_many(5)}
    tasks[4].release()
    again = take(tube)
    moves = [
        Move(
            "ack",
            task.id,
            record_of(task).owner,
            record_of(task).lease,
            result=f'{{"n":{n}}}'.encode() if n != 2 else None,
        )
        for n, task in tasks.items()
    ]
    done = settle(tube.runtime, tube.stored, moves)
    assert {n: record is not None for n, record in zip(tasks, done, strict=True)} == {n: n != 4 for n in range(5)}
    again.ack(b"bytes")
    outcomes = {address: tube.wait(address, 0) for address in "äbcd"}
    assert {outcome.status for outcome in outcomes.values()} == {"done"}
    assert [outcomes[address].result for address in "äbcd"] == [{"n": 0}, None, {"n": 3}, b"bytes"]
    assert [reply["result"] for reply in drain(broker.tube("replies"))] == [{"n": 3}]  # type: ignore[index]


def test_a_waiter_for_an_address_is_woken(broker: penstock.Broker, url: str, clock: Clock) -> None:
    tube, store = broker.tube("t"), broker.runtime.store
    assert isinstance(store, RedisStore)
    meta = store._keys.name(tube.stored.no, "meta")
    tube.put("x", address="a")
    with penstock.connect(url, clock=clock) as other, ThreadPoolExecutor(1) as pool:
        task = take(other.tube("t"))
        waited = pool.submit(tube.wait, "a", 20)
        until(lambda: store._servers.command(meta, "HGET", meta, "awaited") == b"1")
        task.ack("done")
        assert waited.result(10).result == "done"


def test_a_holders_stale_copy_does_not_decide(broker: penstock.Broker, clock: Clock) -> None:
    """It may have touched the task since, and another session may hold it now."""
    tube = broker.tube("t", ttr=5, ttl=60)
    tube.put_many([*"ab"])
    touched, lost = tube.take_many(2)
    touched.touch(100)
    clock.advance(10)
    [other] = tube.take_many(2)
    assert other.data == "b"
    with pytest.raises(penstock.NotTaken):
        lost.release()
    touched.touch(5)
    assert tube.peek(1).due == clock() / 1000 - 10 + 5 + 100 + 5
    clock.advance(40)
    touched.release()
    assert take(tube).data == "a"
    clock.advance(10)  # past the ttl
    with pytest.raises(penstock.NotTaken):
        other.release()


def test_a_deadline_that_is_now_is_over(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=5)
    tube.put_many(["x", "y"])
    first, second = tube.take_many(2)
    clock.advance(4.999)
    assert tube.ack_many([first]) == [True]
    clock.advance(0.001)
    assert tube.ack_many([second]) == [False]


def test_an_ack_without_listeners_returns_no_record(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    task = take(tube)
    assert settle(tube.runtime, tube.stored, [Move("ack", 1, record_of(task).owner)]) == [GONE]
