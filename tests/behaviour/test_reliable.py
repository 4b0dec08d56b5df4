"""Kind reliable: messages with ids like those of a Redis stream, delivered until someone acks them by id."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, facts, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import take


@pytest.fixture
def queue(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("queue", "reliable")


def datas(found: list[penstock.Task]) -> list[object]:
    return [task.data for task in found]


def delivered(queue: penstock.Tube) -> list[object]:
    return datas(queue.inspect(0, 1000, pending=True))


def undelivered(queue: penstock.Tube) -> list[object]:
    return datas(queue.inspect(0, 1000))


def number(task: penstock.Task) -> tuple[int, int]:
    ms, seq = task.id.split("-")
    return int(ms), int(seq)


# ids


def test_ids_are_the_time_and_a_number_from_1(queue: penstock.Tube, clock: Clock) -> None:
    ms = clock()
    assert queue.put("a").id == f"{ms}-1"
    assert [task.id for task in queue.put_many([*"bc"])] == [f"{ms}-2", f"{ms}-3"]
    clock.advance(0.001)
    assert queue.put("d").id == f"{ms + 1}-1"


@pytest.mark.parametrize("back", [-0.001, -3600])
def test_ids_grow_even_if_the_clock_goes_back(queue: penstock.Tube, clock: Clock, back: float) -> None:
    ms = clock()
    queue.put_many([*"ab"])
    clock.advance(back)
    assert [task.id for task in queue.put_many([*"cd"])] == [f"{ms}-3", f"{ms}-4"]
    clock.advance(-back)
    assert queue.put("e").id == f"{ms}-5"
    assert datas(queue.take_many(9)) == list("abcde")


def test_ids_grow_even_after_all_messages_are_gone(queue: penstock.Tube, clock: Clock) -> None:
    ms = clock()
    queue.put("a")
    assert queue.ack_many(queue.take_many(1)) == [f"{ms}-1"]
    queue.put("b")
    queue.truncate()
    clock.advance(-5)
    assert queue.put("c").id == f"{ms}-3"


def test_each_tube_has_its_own_ids(broker: penstock.Broker, queue: penstock.Tube) -> None:
    other = broker.tube("other", kind="reliable")
    assert queue.put("a").id == other.put("b").id
    take(queue)
    take(other)
    assert queue.ack_many([queue.inspect(0, 1, True)[0].id]) != []
    assert delivered(other) == ["b"]


def test_ids_of_one_millisecond_are_in_the_order_of_their_numbers(queue: penstock.Tube) -> None:
    put = queue.put_many(range(250))
    assert [number(task)[1] for task in put] == list(range(1, 251))
    assert datas(queue.take_many(250)) == list(range(250))
    assert delivered(queue) == list(range(250))


# delivery


def test_a_delivered_message_has_no_holder(queue: penstock.Tube, broker: penstock.Broker, clock: Clock) -> None:
    put = queue.put({"n": 1})
    assert (put.status, put.attempts, put.taken, put.data) == ("r", 0, None, {"n": 1})
    clock.advance(2)
    task = take(queue)
    id, status, data = task
    assert (id, status, data) == (put.id, "t", {"n": 1})
    assert (task.attempts, task.lease, task.taken, task.created) == (1, 0, clock.seconds, clock.seconds - 2)
    assert (task.due, task.expires, task.address, task.group) == (None, None, None, None)
    assert queue.take(0) is None
    assert tasks(queue) == {"taken": 1, "total": 1}
    assert [seen.held for seen in broker.sessions()] == [[]]


def test_messages_come_in_put_order(queue: penstock.Tube) -> None:
    queue.put("a")
    queue.put_many([*"bcd"])
    assert datas(queue.take_many(3)) == list("abc")
    queue.put("e")
    assert datas(queue.take_many(9)) == list("de")


def test_the_end_of_a_session_returns_no_message(connect: Connect, queue: penstock.Tube, clock: Clock) -> None:
    queue.put_many([*"ab"])
    other = connect()
    with other.session() as session:
        take(session.tube("queue"))
    take(other.tube("queue"))
    other.close()
    clock.advance(20)
    assert queue.take(0) is None
    assert delivered(queue) == ["a", "b"]
    assert calls(queue) == {"put": 2, "take": 2}


def test_a_blocked_take_is_woken_by_a_put(live: penstock.Broker) -> None:
    tube = live.tube("t", kind="reliable")
    future = begin(lambda: tube.take(60))
    until(lambda: waiters(live, "t") == 1)
    tube.put("x")
    task = future.result(timeout=30)
    assert task is not None
    assert task.data == "x"


# ack


def test_anyone_may_ack_by_id_and_it_counts_once(queue: penstock.Tube, connect: Connect) -> None:
    queue.put_many([*"abc"])
    a, b, c = queue.take_many(3)
    theirs = connect().tube("queue")
    theirs.ack(a.id)
    assert theirs.ack_many([b, c.id]) == [b.id, c.id]
    assert tasks(queue) == {"done": 3}
    assert calls(queue) == {"put": 3, "take": 3, "ack": 3}
    for which in (a, a.id):
        with pytest.raises(penstock.NotTaken, match=a.id):
            queue.ack(which)


def test_ack_many_returns_the_ids_really_removed_each_once(queue: penstock.Tube) -> None:
    put = queue.put_many([*"abcd"])
    queue.take_many(3)
    a, b, c, d = (task.id for task in put)
    assert queue.ack_many([c, a, c, "1-1", d]) == [c, a]
    assert queue.ack_many([b, a]) == [b]
    assert queue.ack_many([]) == []
    assert undelivered(queue) == ["d"]


def test_an_undelivered_message_cannot_be_acked(queue: penstock.Tube) -> None:
    put = queue.put("a")
    before = everything(queue)
    for which in (put, put.id):
        with pytest.raises(penstock.NotTaken, match=put.id):
            queue.ack(which)
    assert everything(queue) == before


def test_ack_sets_the_status_of_the_task(queue: penstock.Tube) -> None:
    queue.put_many([*"ab"])
    a, b = queue.take_many(2)
    a.ack()
    queue.ack_many([b])
    assert (a.status, b.status) == ("-", "-")


def test_with_acks_at_the_end_and_leaves_it_delivered_when_it_raises(queue: penstock.Tube) -> None:
    queue.put_many([*"ab"])
    with take(queue):
        pass
    with pytest.raises(ValueError, match="odd"), take(queue) as task:
        raise ValueError("odd")
    assert delivered(queue) == ["b"]
    assert (task.status, task.reason) == ("t", None)
    assert calls(queue) == {"put": 2, "take": 2, "ack": 1}


def test_a_with_block_raises_if_its_message_was_acked_meanwhile(queue: penstock.Tube) -> None:
    queue.put("a")
    task = take(queue)
    (again,) = queue.recover(1, 0)
    again.ack()
    with pytest.raises(penstock.NotTaken), task:
        pass


# recover


def test_recover_hands_out_what_was_delivered_long_enough_ago(queue: penstock.Tube, clock: Clock) -> None:
    queue.put_many([*"abc"])
    queue.take_many(2)
    clock.advance(2)
    take(queue)
    clock.advance(1)
    assert queue.recover(9, 3.001) == []
    again = queue.recover(9, 3)
    assert [(task.data, task.status, task.attempts, task.taken) for task in again] == [
        ("a", "t", 2, clock.seconds),
        ("b", "t", 2, clock.seconds),
    ]
    assert delivered(queue) == ["c", "a", "b"]
    assert queue.recover(9, 0.5) != []
    assert delivered(queue) == ["a", "b", "c"]
    assert tasks(queue) == {"taken": 3, "total": 3}
    assert calls(queue) == {"put": 3, "take": 6}


def test_recover_returns_each_message_once_oldest_first_and_moves_it_to_the_end(queue: penstock.Tube) -> None:
    queue.put_many([*"abcd"])
    queue.take_many(3)
    assert datas(queue.recover(2, 0)) == ["a", "b"]
    assert delivered(queue) == ["c", "a", "b"]
    assert datas(queue.recover(100, 0)) == ["c", "a", "b"]
    assert datas(queue.recover(1, 0)) == ["c"]
    assert delivered(queue) == ["a", "b", "c"]
    assert undelivered(queue) == ["d"]


def test_recover_of_nothing_delivered(queue: penstock.Tube) -> None:
    assert queue.recover(5, 0) == []
    queue.put("a")
    assert queue.recover(5, 0) == []
    assert calls(queue) == {"put": 1}


def test_a_recovered_message_is_acked_like_any_other(queue: penstock.Tube, connect: Connect) -> None:
    queue.put("a")
    first = take(queue)
    (again,) = connect().tube("queue").recover(1, 0)
    first.ack()  # the first of them
    with pytest.raises(penstock.NotTaken):
        again.ack()
    assert calls(queue)["ack"] == 1


def test_recover_after_the_clock_went_back_is_late_by_at_most_the_jump(queue: penstock.Tube, clock: Clock) -> None:
    queue.put_many([*"ab"])
    take(queue)
    clock.advance(-10)
    take(queue)
    clock.advance(1)
    assert queue.recover(9, 1) == []
    clock.advance(10)
    assert datas(queue.recover(9, 1)) == ["a", "b"]


def test_recover_hands_out_nothing_while_the_tube_is_paused(queue: penstock.Tube) -> None:
    queue.put("a")
    take(queue)
    queue.pause()
    assert queue.recover(1, 0) == []
    queue.resume()
    assert datas(queue.recover(1, 0)) == ["a"]


# inspect


def test_inspect_reads_either_list_and_changes_nothing(queue: penstock.Tube, clock: Clock) -> None:
    put = queue.put_many([*"abcd"])
    queue.take_many(2)
    clock.advance(1)
    before = everything(queue)
    assert [facts(task) for task in queue.inspect(0, 9)] == [facts(queue.peek(task.id)) for task in put[2:]]
    pending = queue.inspect(0, 9, pending=True)
    assert [(task.id, task.data, task.attempts, task.taken) for task in pending] == [
        (put[0].id, "a", 1, clock.seconds - 1),
        (put[1].id, "b", 1, clock.seconds - 1),
    ]
    assert everything(queue) == before


@pytest.mark.parametrize("pending", [False, True])
def test_inspect_from_either_end(queue: penstock.Tube, pending: bool) -> None:
    queue.put_many(range(6))
    if pending:
        queue.take_many(6)
    for start in range(-8, 9):
        first = start if start >= 0 else 6 + start
        for count in (1, 2, 5, 6, 100):
            expected = list(range(6))[first : first + count] if 0 <= first < 6 else []
            assert datas(queue.inspect(start, count, pending)) == expected, (start, count)


# by id


def test_delete_and_peek_go_by_id_in_either_state(queue: penstock.Tube) -> None:
    put = queue.put_many([*"abc"])
    take(queue)
    assert (queue.peek(put[0].id).status, queue.peek(put[1]).status) == ("t", "r")
    queue.delete(put[0].id)
    queue.delete(put[1])
    assert (put[0].id in queue, put[2].id in queue, "1-1" in queue) == (False, True, False)
    assert tasks(queue) == {"ready": 1, "done": 2, "total": 1}
    assert calls(queue) == {"put": 3, "take": 1, "delete": 2}
    for verb in (queue.peek, queue.delete, queue.why):
        with pytest.raises(penstock.NotFound, match=put[0].id):
            verb(put[0].id)


def test_tasks_lists_in_put_order_by_status(queue: penstock.Tube) -> None:
    put = queue.put_many([*"abcde"])
    queue.take_many(3)
    queue.recover(1, 0)
    assert datas(queue.tasks()) == list("abcde")
    assert datas(queue.tasks("t")) == list("abc")
    assert datas(queue.tasks("r")) == list("de")
    assert datas(queue.tasks("t", limit=2)) == list("ab")
    assert datas(queue.tasks("t", after=put[1].id)) == ["c"]
    assert datas(queue.tasks(limit=2, after=put[1])) == list("cd")


def test_why_describes_either_state(queue: penstock.Tube, clock: Clock) -> None:
    a, b = queue.put_many([*"ab"])
    assert queue.why(b.id) == f"task {b.id} is ready: 1 task ahead of it; the take after that gets it"
    take(queue)
    clock.advance(3)
    why = queue.why(a)
    assert why == (f"task {a.id} is delivered: handed out 3 s ago, delivery 1, not acked; recover hands it out again")


# as any other tube


def test_capacity_counts_unacked_messages(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="reliable", capacity=2)
    tube.put_many([*"ab"])
    take(tube)
    with pytest.raises(penstock.TubeFull, match="holds 2 of 2"):
        tube.put("c")
    last = tube.inspect(-1, 1)[0]
    tube.ack_many(tube.inspect(0, 1, pending=True))
    assert number(tube.put("c")) == (number(last)[0], number(last)[1] + 1)  # a refused put used no id


def test_a_paused_tube_delivers_nothing(queue: penstock.Tube) -> None:
    queue.put("a")
    queue.pause()
    assert queue.take(0) is None
    queue.resume()
    assert take(queue).data == "a"


def test_drop_is_refused_while_messages_are_delivered(broker: penstock.Broker, queue: penstock.Tube) -> None:
    queue.put_many([*"ab"])
    take(queue)
    with pytest.raises(penstock.TubeBusy):
        queue.drop()
    assert queue.truncate() == 2
    queue.drop()
    with pytest.raises(penstock.NoSuchTube):
        queue.recover(1, 0)
    with pytest.raises(penstock.NoSuchTube):
        queue.inspect(0, 1)
    with pytest.raises(penstock.NoSuchTube):
        queue.ack_many(["1-1"])
    assert broker.tubes() == []


def test_changes_are_reported(queue: penstock.Tube) -> None:
    events: list[tuple[str, str]] = []
    queue.on_change(lambda task, event: events.append((event, f"{task.data}{task.attempts}{task.status}")))
    queue.put_many([*"ab"])
    task = take(queue)
    queue.recover(1, 0)
    task.ack()
    queue.delete(queue.inspect(0, 1)[0])
    assert events == [
        ("put", "a0r"),
        ("put", "b0r"),
        ("take", "a1t"),
        ("take", "a2t"),
        ("ack", "a2-"),
        ("delete", "b0-"),
    ]


def test_undecodable_records_are_skipped(queue: penstock.Tube, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as damage:
        damage.setattr("penstock.core.codec.encode", lambda data: b'{"cut')
        queue.put("damaged")
    queue.put("good")
    assert take(queue).data == "good"
    assert datas(queue.recover(9, 0)) == ["good"]
    assert delivered(queue) == [b'{"cut', "good"]


def test_a_reply_is_a_message_like_any_other(broker: penstock.Broker, queue: penstock.Tube) -> None:
    feeds, work = broker.tube("feeds", kind="round", period=1), broker.tube("work")
    feeds.put("mine", id="reply-2")
    work.put_many([("x", {"reply_to": "queue"}), ("y", {"reply_to": "feeds"})])
    work.ack_many(work.take_many(2))
    assert take(queue).data == {"id": 1, "address": None, "status": "done", "result": None}
    mine, reply = feeds.tasks()
    assert (mine.id, mine.data) == ("reply-2", "mine")
    assert reply.data == {"id": 2, "address": None, "status": "done", "result": None}
    # The next free number; higher if a killed server skipped some.
    assert reply.id == "reply-2-" or int(str(reply.id).removeprefix("reply-")) > 2
