"""on_change: called for every change that this broker made to the tube (rule 16)."""

from __future__ import annotations

import logging

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.verbs import KINDS, drain, take


class Seen(list[tuple[int, str, str]]):
    """Records the changes of a tube: task id, status afterwards, event."""

    def __call__(self, task: penstock.Task, event: str) -> None:
        self.append((task.id, str(task.status), event))


@pytest.mark.parametrize("kind", KINDS)
def test_each_verb_is_reported(broker: penstock.Broker, kind: str) -> None:
    tube, seen = broker.tube("t", kind=kind), Seen()
    tube.on_change(seen)
    tube.put("x")
    take(tube).release()
    take(tube).bury("odd")
    tube.kick()
    take(tube).ack()
    assert seen == [
        (1, "r", "put"), (1, "t", "take"), (1, "r", "release"), (1, "t", "take"), (1, "!", "bury"), (1, "r", "kick"),
        (1, "t", "take"), (1, "-", "ack"),
    ]  # fmt: skip


def test_fail_touch_and_delete_are_reported(broker: penstock.Broker) -> None:
    tube, seen = broker.tube("t", ttr=5), Seen()
    tube.put_many(["x", "y"])
    task = take(tube)
    tube.on_change(seen)
    task.touch(1)
    task.fail("broken")
    tube.delete(2)
    assert seen == [(1, "t", "touch"), (1, "-", "fail"), (2, "-", "delete")]


def test_changes_by_the_clock_are_reported(broker: penstock.Broker, clock: Clock) -> None:
    tube, seen = broker.tube("t"), Seen()
    tube.put_many([("a", {"ttr": 1}), ("b", {"ttl": 1}), ("c", {"delay": 1})])
    take(tube)
    tube.on_change(seen)
    clock.advance(1)
    tube.stats()
    assert sorted(seen) == [(1, "r", "ttr"), (2, "-", "ttl"), (3, "r", "delay")]


def test_a_delayed_put_is_reported(broker: penstock.Broker) -> None:
    tube, seen = broker.tube("t"), Seen()
    tube.on_change(seen)
    tube.put("x", delay=3)
    assert seen == [(1, "~", "put")]


def test_every_task_of_a_batch_is_reported(broker: penstock.Broker) -> None:
    tube, seen = broker.tube("t"), Seen()
    tube.on_change(seen)
    tube.put_many(["a", "b"])
    tube.ack_many(tube.take_many(2))
    assert seen == [
        (1, "r", "put"), (2, "r", "put"), (1, "t", "take"), (2, "t", "take"), (1, "-", "ack"), (2, "-", "ack"),
    ]  # fmt: skip


def test_a_task_that_used_up_its_attempts_is_reported_as_buried(broker: penstock.Broker, clock: Clock) -> None:
    tube, seen = broker.tube("t", max_attempts=1, ttr=1), Seen()
    tube.put_many(["a", "b"])
    first, _ = tube.take_many(2)
    tube.on_change(seen)
    first.release()
    clock.advance(1)
    tube.stats()
    assert [(id, event) for id, _, event in seen] == [(1, "bury"), (2, "ttr"), (2, "bury")]


def test_releases_at_session_end_are_reported(broker: penstock.Broker) -> None:
    tube, seen = broker.tube("t"), Seen()
    tube.put("x")
    with broker.session() as session:
        take(session.tube("t"))
        tube.on_change(seen)
    assert seen == [(1, "r", "release")]


def test_on_change_returns_the_previous_callback(broker: penstock.Broker) -> None:
    tube, first, second = broker.tube("t"), Seen(), Seen()
    assert tube.on_change(first) is None
    tube.put("x")
    assert tube.on_change(second) is first
    tube.put("y")
    assert tube.on_change(None) is second
    tube.put("z")
    assert (first, second) == ([(1, "r", "put")], [(2, "r", "put")])


def test_the_callback_belongs_to_the_tube_and_not_to_the_handle(broker: penstock.Broker) -> None:
    seen = Seen()
    broker.tube("t").on_change(seen)
    broker.tube("t").put("x")
    broker.tube("other").put("y")
    with broker.session() as session:
        session.tube("t").put("z")
    assert [id for id, _, _ in seen] == [1, 2]


def test_changes_by_another_broker_are_not_reported(broker: penstock.Broker, connect: Connect) -> None:
    tube, seen = broker.tube("t"), Seen()
    tube.on_change(seen)
    connect().tube("t").put("x")
    assert drain(tube) == ["x"]
    assert seen == [(1, "t", "take"), (1, "-", "ack")]


def test_the_callback_runs_after_the_change_is_stored(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t"), connect().tube("t")
    found: list[object] = []
    tube.on_change(lambda task, event: found.append(theirs.peek(task.id).data))
    tube.put("x")
    assert found == ["x"]


def test_the_callback_may_use_the_tube(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")

    def follow(task: penstock.Task, event: str) -> None:
        if event == "ack" and task.data == "first":
            tube.put("second")

    tube.on_change(follow)
    tube.put("first")
    assert drain(tube) == ["first", "second"]


def test_an_error_in_the_callback_is_logged_and_ignored(
    broker: penstock.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    tube = broker.tube("t")

    def broken(task: penstock.Task, event: str) -> None:
        raise RuntimeError("callback went wrong")

    tube.on_change(broken)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert tube.put("x").id == 1
    assert tasks(tube) == {"ready": 1, "total": 1}
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.name.partition(".")[0] for record in errors] == ["penstock"]
    assert "callback went wrong" in caplog.text


def test_refused_calls_are_not_reported(broker: penstock.Broker) -> None:
    tube, seen = broker.tube("t", capacity=1), Seen()
    tube.put("x")
    tube.on_change(seen)
    with pytest.raises(penstock.TubeFull):
        tube.put("y")
    with pytest.raises(penstock.NotTaken):
        tube.ack(1)
    assert seen == []
