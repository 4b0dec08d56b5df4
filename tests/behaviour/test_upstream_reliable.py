"""The rules of the seed's reliable queue (the Redis module RedisMQ), command by command.

MQ.PUSH is put and put_many, MQ.POP take_many, MQ.ACK ack_many, MQ.RECOVER recover (in seconds), MQ.INSPECT inspect.
Differences by our rules: a tube is created before it is used, a malformed id is refused, and recover returns no
message twice in one call.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.support.inspection import tasks
from tests.support.verbs import take


@pytest.fixture
def mq(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("myreliable1", "reliable")


def pairs(found: list[penstock.Task]) -> list[tuple[str, object]]:
    """As the commands reply: id and payload."""
    return [(task.id, task.data) for task in found]


def pending(found: list[penstock.Task], clock: Clock) -> list[tuple[object, ...]]:
    """As MQ.INSPECT PENDING replies: id, payload, last delivery, elapsed, deliveries; in seconds."""
    return [
        (task.id, task.data, task.taken, round(clock.seconds - (task.taken or 0), 3), task.attempts) for task in found
    ]


# MQ.PUSH


def test_push_returns_an_id_for_every_element(mq: penstock.Tube, clock: Clock) -> None:
    pushed = mq.put_many(["one", "two", "three"])
    assert [task.id for task in pushed] == [f"{clock()}-1", f"{clock()}-2", f"{clock()}-3"]


def test_push_of_one_element(mq: penstock.Tube) -> None:
    assert re.fullmatch(r"[1-9][0-9]*-1", mq.put("one").id)


def test_push_appends_from_the_leftmost_to_the_rightmost(mq: penstock.Tube) -> None:
    mq.put("zero")
    mq.put_many(["one", "two"])
    assert [task.data for task in mq.inspect(0, 10)] == ["zero", "one", "two"]


def test_push_keeps_the_numbers_of_the_ids_growing(mq: penstock.Tube, clock: Clock) -> None:
    found = []
    for step in (0, 0, 0.001, 0, -2, 3):
        clock.advance(step)
        found += [tuple(map(int, task.id.split("-"))) for task in mq.put_many(["x", "y"])]
    assert found == sorted(set(found))
    assert [seq for _, seq in found] == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 1, 2]


def test_pushed_elements_are_undelivered(mq: penstock.Tube) -> None:
    mq.put_many(["one", "two"])
    assert tasks(mq) == {"ready": 2, "total": 2}
    assert mq.inspect(0, 10, pending=True) == []


@pytest.mark.parametrize("payload", ["", b"", b"\x00\r\n\xff", "payload with spaces", "x" * 100_000])
def test_a_payload_is_popped_unchanged(mq: penstock.Tube, payload: object) -> None:
    mq.put(payload)
    assert take(mq).data == payload


# MQ.POP


def test_pop_of_an_empty_queue(mq: penstock.Tube) -> None:
    assert mq.take_many(5) == []


def test_pop_answers_ids_and_payloads_oldest_first(mq: penstock.Tube) -> None:
    pushed = pairs(mq.put_many(["one", "two", "three"]))
    assert pairs(mq.take_many(2)) == pushed[:2]
    assert pairs(mq.take_many(2)) == pushed[2:]


def test_pop_of_more_than_there_are(mq: penstock.Tube) -> None:
    pushed = pairs(mq.put_many(["one", "two"]))
    assert pairs(mq.take_many(100)) == pushed


@pytest.mark.parametrize("count", [0, -1])
def test_pop_of_less_than_one(mq: penstock.Tube, count: int) -> None:
    with pytest.raises(penstock.BadValue, match="count"):
        mq.take_many(count)


def test_popped_elements_are_moved_to_the_delivered(mq: penstock.Tube) -> None:
    pushed = pairs(mq.put_many(["one", "two", "three"]))
    mq.take_many(2)
    assert pairs(mq.inspect(0, 10)) == pushed[2:]
    assert pairs(mq.inspect(0, 10, pending=True)) == pushed[:2]
    assert tasks(mq) == {"ready": 1, "taken": 2, "total": 3}


def test_a_popped_element_is_not_popped_again(mq: penstock.Tube) -> None:
    mq.put("one")
    mq.take_many(1)
    assert mq.take_many(1) == []


# MQ.ACK


def test_ack_answers_all_ids_under_ideal_conditions(mq: penstock.Tube) -> None:
    ids = [task.id for task in mq.put_many(["one", "two", "three"])]
    mq.take_many(3)
    assert mq.ack_many(ids) == ids


def test_ack_of_a_list_is_ack_many(mq: Any) -> None:
    ids = [task.id for task in mq.put_many(["one", "two", "three"])]
    mq.take_many(2)
    assert mq.ack(ids) == ids[:2]
    last = mq.take_many(1)
    assert (mq.ack(last), last[0].status) == (ids[2:], "-")
    assert mq.ack(tuple(ids)) == []


def test_ack_answers_in_the_order_of_the_given_ids(mq: penstock.Tube) -> None:
    ids = [task.id for task in mq.put_many(["one", "two", "three"])]
    mq.take_many(3)
    assert mq.ack_many(ids[::-1]) == ids[::-1]


def test_ack_frees_what_the_message_used(mq: penstock.Tube) -> None:
    mq.put_many(["one", "two"])
    mq.ack_many(mq.take_many(1))
    assert tasks(mq) == {"ready": 1, "done": 1, "total": 1}
    assert mq.inspect(0, 10, pending=True) == []


def test_an_id_that_was_acked_before_is_left_out(mq: penstock.Tube) -> None:
    one, two = (task.id for task in mq.put_many(["one", "two"]))
    mq.take_many(2)
    assert mq.ack_many([one]) == [one]
    assert mq.ack_many([one, two]) == [two]


def test_an_undelivered_id_is_left_out(mq: penstock.Tube) -> None:
    pushed = mq.put("one")
    assert mq.ack_many([pushed.id]) == []
    assert pairs(mq.take_many(1)) == [(pushed.id, "one")]


def test_an_unknown_id_is_left_out(mq: penstock.Tube) -> None:
    mq.put("one")
    mq.take_many(1)
    assert mq.ack_many(["1599352749159-4"]) == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_ack_from_the_head_the_middle_and_the_end_of_the_delivered(mq: penstock.Tube, place: int) -> None:
    ids = [task.id for task in mq.put_many(["one", "two", "three"])]
    mq.take_many(3)
    assert mq.ack_many([ids.pop(place)]) != []
    assert [task.id for task in mq.inspect(0, 10, pending=True)] == ids
    mq.put("four")
    mq.take_many(1)
    assert [task.data for task in mq.inspect(-1, 1, pending=True)] == ["four"]


def test_the_first_to_finish_acks_a_recovered_message(mq: penstock.Tube) -> None:
    mq.put("one")
    (slow,) = mq.take_many(1)
    (quick,) = mq.recover(1, 0)
    assert mq.ack_many([quick.id]) == [quick.id]
    assert mq.ack_many([slow.id]) == []


# MQ.RECOVER


def test_recover_counts_a_delivery(mq: penstock.Tube) -> None:
    mq.put("one")
    mq.take_many(1)
    assert [mq.recover(1, 0)[0].attempts for _ in range(3)] == [2, 3, 4]


def test_recover_resets_the_time_of_the_last_delivery(mq: penstock.Tube, clock: Clock) -> None:
    mq.put("one")
    mq.take_many(1)
    clock.advance(10)
    assert mq.recover(1, 10)[0].taken == clock.seconds
    assert mq.recover(1, 0.001) == []


def test_recover_moves_from_the_head_to_the_end(mq: penstock.Tube, clock: Clock) -> None:
    mq.put_many(["one", "two", "three"])
    mq.take_many(3)
    clock.advance(1)
    assert [task.data for task in mq.recover(2, 1)] == ["one", "two"]
    assert [task.data for task in mq.inspect(0, 10, pending=True)] == ["three", "one", "two"]


def test_recover_takes_messages_of_at_least_that_age(mq: penstock.Tube, clock: Clock) -> None:
    for data in ("one", "two", "three"):
        mq.put(data)
        mq.take_many(1)
        clock.advance(1)
    assert [task.data for task in mq.recover(10, 2)] == ["one", "two"]


def test_recover_of_the_only_message_more_than_once(mq: penstock.Tube) -> None:
    mq.put("one")
    mq.take_many(1)
    assert len(mq.recover(10, 0)) == 1
    assert [task.data for task in mq.inspect(0, 10, pending=True)] == ["one"]


def test_recover_leaves_the_undelivered_alone(mq: penstock.Tube) -> None:
    mq.put_many(["one", "two"])
    mq.take_many(1)
    mq.recover(10, 0)
    assert [task.data for task in mq.inspect(0, 10)] == ["two"]


# MQ.INSPECT


def test_inspect_of_the_last_two(mq: penstock.Tube) -> None:
    pushed = pairs(mq.put_many([f"message {n}" for n in range(1, 6)]))
    assert pairs(mq.inspect(-2, 2)) == pushed[-2:]


def test_inspect_of_the_middle(mq: penstock.Tube) -> None:
    pushed = pairs(mq.put_many(range(5)))
    assert pairs(mq.inspect(1, 3)) == pushed[1:4]


@pytest.mark.parametrize("start", [5, 6, 100, -6, -100])
def test_inspect_outside_of_the_list(mq: penstock.Tube, start: int) -> None:
    mq.put_many(range(5))
    assert mq.inspect(start, 2) == []


def test_inspect_of_an_empty_list(mq: penstock.Tube) -> None:
    assert mq.inspect(0, 10) == mq.inspect(-1, 10) == mq.inspect(0, 10, pending=True) == []


def test_inspect_of_the_pending_ones(mq: penstock.Tube, clock: Clock) -> None:
    ids = [task.id for task in mq.put_many(["msg1", "msg2"])]
    began = clock.seconds
    mq.take_many(1)
    clock.advance(2)
    mq.take_many(1)
    clock.advance(0.5)
    assert pending(mq.inspect(0, 10, pending=True), clock) == [
        (ids[0], "msg1", began, 2.5, 1),
        (ids[1], "msg2", began + 2, 0.5, 1),
    ]
    mq.recover(1, 2)
    assert pending(mq.inspect(0, 10, pending=True), clock) == [
        (ids[1], "msg2", began + 2, 0.5, 1),
        (ids[0], "msg1", began + 2.5, 0, 2),
    ]


@pytest.mark.parametrize("count", [0, -1])
def test_inspect_of_less_than_one(mq: penstock.Tube, count: int) -> None:
    with pytest.raises(penstock.BadValue, match="count"):
        mq.inspect(0, count)
