"""Replies: `reply_to` puts a task into another tube in the step in which the task ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, refused, tasks
from tests.support.threads import begin
from tests.support.verbs import KINDS, drain, take

PATIENCE = 30.0


@pytest.mark.parametrize("kind", KINDS)
def test_an_ack_replies_with_the_result(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    results: list[object] = [None, 0, "text", {"a": [1, "é", None]}, []]
    for result in results:
        put = tube.put("x", reply_to="replies")
        take(tube).ack(result)
        assert drain(broker.tube("replies")) == [{"id": put.id, "address": None, "status": "done", "result": result}]


def test_a_result_of_bytes_is_marked_as_base64(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", reply_to="replies", address="a")
    take(tube).ack(b"\x00\xff")
    expected = {"id": 1, "address": "a", "status": "done", "result": "AP8=", "encoding": "base64"}
    assert drain(broker.tube("replies")) == [expected]


@pytest.mark.parametrize("code", [None, 404, "E7"])
def test_a_fail_replies_with_error_and_code(broker: penstock.Broker, code: str | int | None) -> None:
    tube = broker.tube("t")
    tube.put("x", reply_to="replies", address="a")
    take(tube).fail("broken", code)
    reply = {"id": 1, "address": "a", "status": "failed", "error": "broken"}
    assert drain(broker.tube("replies")) == [reply if code is None else {**reply, "code": code}]


ENDS: dict[str, Callable[[penstock.Tube, Clock], object]] = {
    "delete": lambda tube, clock: tube.delete(1),
    "delete of a taken one": lambda tube, clock: tube.delete(take(tube)),
    "truncate": lambda tube, clock: tube.truncate(),
    "drop": lambda tube, clock: tube.drop(),
    "cancel": lambda tube, clock: tube.group("g").cancel(),
    "ttl": lambda tube, clock: _later(clock, tube.stats),
    "ttl, met by a take": lambda tube, clock: _later(clock, lambda: tube.take(0)),
    "ttl, met by a delete": lambda tube, clock: _delete_late(tube, clock),
    "ttl at release": lambda tube, clock: _release_late(take(tube), clock),
}


def _later(clock: Clock, look: Callable[[], object]) -> None:
    clock.advance(5)
    look()


def _delete_late(tube: penstock.Tube, clock: Clock) -> None:
    clock.advance(5)
    with pytest.raises(penstock.NotFound):
        tube.delete(1)


def _release_late(task: penstock.Task, clock: Clock) -> None:
    clock.advance(5)
    task.release()


@pytest.mark.parametrize("end", ENDS)
def test_every_other_end_replies_too(broker: penstock.Broker, clock: Clock, end: str) -> None:
    tube = broker.tube("t")
    group = "g" if end == "cancel" else None
    tube.put("x", reply_to="replies", address="a", ttl=5, ttr=9, group=group)
    ENDS[end](tube, clock)
    status = "expired" if end.startswith("ttl") else "cancelled" if end == "cancel" else "deleted"
    assert drain(broker.tube("replies")) == [{"id": 1, "address": "a", "status": status, "error": None}]


def test_no_reply_unless_the_task_ends(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", reply_to="replies")
    take(tube).release()
    task = take(tube)
    task.touch(5)
    task.bury("odd")
    tube.kick()
    tube.put("y", reply_to="replies", address="a")
    tube.put("z", address="a", on_duplicate="replace")
    assert [info.name for info in broker.tubes()] == ["t"]


def test_a_late_ack_does_not_reply(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=1)
    tube.put("x", reply_to="replies")
    task = take(tube)
    clock.advance(1)
    with pytest.raises(penstock.NotTaken):
        task.ack("late")
    assert [info.name for info in broker.tubes()] == ["t"]


def test_a_missing_reply_tube_is_created_as_fifottl(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put("x", reply_to="replies")
    take(tube).ack()
    assert [(info.name, info.kind, info.options) for info in broker.tubes()] == [
        ("replies", "fifottl", {}),
        ("t", "fifo", {}),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_takes_the_reply_tubes_own_defaults(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    replies = broker.tube("replies", kind=kind, max_attempts=3)
    tube = broker.tube("t")
    tube.put_many(["x", "y"], reply_to="replies")
    tube.ack_many(tube.take_many(2))
    assert [reply["id"] for reply in drain(replies) if isinstance(reply, dict)] == [1, 2]  # in the order of their ends
    assert calls(replies) == {"put": 2, "take": 2, "ack": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tube_may_reply_to_itself(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, capacity=1)
    tube.put("x", reply_to="t")
    take(tube).ack("r")
    assert broker.check() == []
    task = take(tube)
    assert (task.id > 1, task.data) == (True, {"id": 1, "address": None, "status": "done", "result": "r"})


def test_a_dropped_tube_does_not_reply_to_itself(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", reply_to="t")
    tube.drop()
    assert broker.tubes() == []


def test_a_full_reply_tube_blocks_no_ack(broker: penstock.Broker) -> None:
    replies = broker.tube("replies", capacity=1, max_payload=10)
    tube = broker.tube("t")
    tube.put_many(["x", "y"], reply_to="replies")
    for _ in range(2):
        take(tube).ack("a result of some length")
    assert tasks(replies) == {"ready": 2, "total": 2}
    with pytest.raises(penstock.TubeFull):
        replies.put("z")


def test_a_reply_is_reported_and_counted_as_a_put(broker: penstock.Broker) -> None:
    tube, replies, seen = broker.tube("t"), broker.tube("replies"), []
    replies.on_change(lambda task, event: seen.append((event, task.id)))
    tube.put("x", reply_to="replies")
    take(tube).ack()
    assert (seen, calls(replies)) == ([("put", 1)], {"put": 1})


def test_a_session_that_ends_replies_for_what_expired(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", reply_to="replies", ttl=2, ttr=100)
    session = broker.session()
    take(session.tube("t"))
    clock.advance(3)
    session.close()
    assert drain(connect().tube("replies")) == [{"id": 1, "address": None, "status": "expired", "error": None}]


def test_truncate_of_many_replies_for_each_once(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put_many(range(2_500), reply_to="replies")
    assert tube.truncate() == 2_500
    ids = [task.data["id"] for task in broker.tube("replies").take_many(5_000) if isinstance(task.data, dict)]
    assert sorted(ids) == list(range(1, 2_501))


BAD_NAMES: list[Any] = ["", "../x", "a b", "a\r\n", "a\0", "{x}", "'; DROP TABLE", "\u200b", "x" * 201, 5, True, b"x"]


def test_a_bad_reply_tube_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    refused(BAD_NAMES, lambda name: tube.put("x", reply_to=name), "reply_to")
    refused(BAD_NAMES, lambda name: tube.put_many(["x"], reply_to=name), "reply_to")
    assert (tasks(tube), calls(tube)) == ({}, {})


def test_a_taker_of_replies_is_woken(live: penstock.Broker) -> None:
    tube, replies = live.tube("t"), live.tube("replies")
    tube.put("x", reply_to="replies")
    task = take(tube)
    with live.session() as session:
        waiting = begin(lambda: session.tube("replies").take(PATIENCE))
        task.ack("r")
        reply = waiting.result(PATIENCE)
    assert reply is not None
    assert reply.data == {"id": 1, "address": None, "status": "done", "result": "r"}
    assert replies.stats().calls.put == 1
