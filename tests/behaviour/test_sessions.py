"""Sessions: who holds leases, and what happens when they end (rule 10)."""

from __future__ import annotations

import os
import socket
from typing import Any
from uuid import UUID, uuid4

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import KINDS, drain, take


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_brokers_tasks_are_ready_at_once(broker: penstock.Broker, connect: Connect, kind: str) -> None:
    tube, theirs = broker.tube("t", kind=kind), connect()
    tube.put("a", utube=1) if "utube" in kind else tube.put("a")
    tube.put("b", utube=2) if "utube" in kind else tube.put("b")
    theirs.tube("t").take_many(2)
    theirs.close()
    assert tasks(tube) == {"ready": 2, "total": 2}
    assert calls(tube) == {"put": 2, "take": 2, "release": 2}
    assert drain(tube) == ["a", "b"]


def test_leaving_the_with_block_closes_the_broker(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with connect() as theirs:
        take(theirs.tube("t"))
    assert take(tube).attempts == 2


def test_the_end_of_a_session_releases_no_task_of_others(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t"), connect()
    tube.put_many(["a", "b"])
    mine = take(tube)
    take(theirs.tube("t"))
    theirs.close()
    mine.ack()
    assert tasks(tube) == {"ready": 1, "done": 1, "total": 1}


def test_a_session_end_past_the_ttl_removes_the_task(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", ttl=2, ttr=10)
    with broker.session() as session:
        take(session.tube("t"))
        clock.advance(2)
    assert calls(tube) == {"put": 1, "take": 1, "release": 1, "ttl": 1}


def test_each_session_has_its_own_uuid(broker: penstock.Broker) -> None:
    with broker.session() as one, broker.session() as other:
        assert UUID(str(one.id)) != UUID(str(other.id))


def test_a_sessions_lease_is_not_its_brokers(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with broker.session() as session:
        task = take(session.tube("t"))
        with pytest.raises(penstock.NotTaken):
            tube.ack(task.id)
        session.tube("t").ack(task.id)
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


def test_a_session_takes_from_several_tubes(broker: penstock.Broker) -> None:
    broker.tube("a")
    broker.tube("b").put("x")
    with broker.session() as session:
        task = session.take(["a", "b"], timeout=0)
        assert task is not None
        assert (task.tube, task.data) == ("b", "x")


def test_a_closed_sessions_tasks_are_ready_at_once(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    session = broker.session()
    task = take(session.tube("t"))
    session.close()
    with pytest.raises(penstock.PenstockError):
        task.ack()
    assert take(tube).attempts == 2


def test_take_in_a_closed_session_is_not_found(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    session = broker.session()
    handle = session.tube("t")
    session.close()
    with pytest.raises(penstock.NotFound):
        handle.take(0)
    with pytest.raises(penstock.NotFound):
        session.take(["t"], timeout=0)
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_closing_a_session_twice_is_harmless(broker: penstock.Broker) -> None:
    session = broker.session()
    session.close()
    session.close()
    assert broker.tube("t").put("x").id == 1


def test_with_a_ttr_its_tasks_stay_taken_that_long(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with broker.session(ttr=5) as session:
        take(session.tube("t"))
    clock.advance(4.999)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert take(tube).attempts == 2
    assert calls(tube) == {"put": 1, "take": 2, "release": 1}


def test_joining_a_session_in_time_continues_its_tasks(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with broker.session(ttr=5) as session:
        task = take(session.tube("t"))
    clock.advance(4.999)
    with connect().session(id=session.id) as joined:
        assert joined.id == session.id
        clock.advance(5)
        joined.tube("t").ack(task.id)
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


def test_joining_at_the_deadline_is_too_late(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    broker.tube("t").put("x")
    with broker.session(ttr=5) as session:
        take(session.tube("t"))
    clock.advance(5)
    with pytest.raises(penstock.NotFound):
        connect().session(id=session.id)


def test_a_closed_session_without_ttr_cannot_be_joined(broker: penstock.Broker) -> None:
    session = broker.session()
    session.close()
    with pytest.raises(penstock.NotFound):
        broker.session(id=session.id)


def test_an_unknown_session_is_not_found(broker: penstock.Broker) -> None:
    unknown = str(uuid4())
    with pytest.raises(penstock.NotFound) as refused:
        broker.session(id=unknown)
    assert str(refused.value) == f"session {unknown} is unknown or has lapsed: begin a new one with broker.session()"


def test_a_joined_session_ends_with_the_last_handle(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x")
    first = broker.session()
    take(first.tube("t"))
    second = connect().session(id=first.id)
    first.close()
    assert tube.take(0) is None
    second.close()
    assert take(tube).attempts == 2


def test_joined_handles_share_their_leases(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with broker.session() as first, connect().session(id=first.id) as second:
        task = take(first.tube("t"))
        second.tube("t").ack(task.id)
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


@pytest.mark.parametrize("ttr", [-1, float("nan"), float("inf"), True, "1", 1e308])
def test_a_bad_session_ttr_is_refused(broker: penstock.Broker, ttr: float) -> None:
    with pytest.raises(penstock.BadValue):
        broker.session(ttr=ttr)


@pytest.mark.parametrize("id", [5, 1.0, True, b"x"])
def test_a_session_id_of_another_type_is_refused(broker: penstock.Broker, id: str) -> None:
    with pytest.raises(penstock.BadValue):
        broker.session(id=id)


def test_sessions_shows_who_holds_what(broker: penstock.Broker, clock: Clock) -> None:
    broker.tube("b").put_many(["x", "y"])
    broker.tube("a").put("z")
    with broker.session() as session:
        session.tube("b").take_many(2)
        take(session.tube("a"))
        [seen] = [seen for seen in broker.sessions() if seen.id == session.id]
    assert (seen.host, seen.pid, seen.heartbeat) == (socket.gethostname(), os.getpid(), clock.seconds)
    assert sorted(seen.held) == [("a", 1), ("b", 1), ("b", 2)]
    assert seen.waits == []


def test_sessions_are_filtered_by_their_heartbeat(broker: penstock.Broker, clock: Clock) -> None:
    began = clock.seconds
    with broker.session() as old:
        old.take([broker.tube("t").name], 0)
        clock.advance(2)
        with broker.session() as new:
            new.take(["t"], 0)

            def ids(**given: float | None) -> list[str]:
                return [session.id for session in broker.sessions(**given)]

            assert ids() == ids(since=None, until=None) == ids(since=began, until=began + 2) == [old.id, new.id]
            assert (ids(since=began + 2), ids(since=began + 0.001)) == ([new.id], [new.id])
            assert (ids(until=began), ids(until=began + 1.999)) == ([old.id], [old.id])
            assert (ids(since=began + 3), ids(until=began - 1), ids(since=began + 2, until=began)) == ([], [], [])
    bad: list[Any] = ["now", True, float("nan"), b"1"]
    for value in bad:
        for name in ("since", "until"):
            with pytest.raises(penstock.BadValue, match=name):
                broker.sessions(**{name: value})


def test_an_ended_session_is_not_shown(broker: penstock.Broker) -> None:
    session = broker.session()
    assert session.id in [seen.id for seen in broker.sessions()]
    session.close()
    assert session.id not in [seen.id for seen in broker.sessions()]


@pytest.mark.parametrize(("silence", "data"), [(14.999, None), (15, "x")])
def test_a_session_without_heartbeats_lapses(
    broker: penstock.Broker, connect: Connect, clock: Clock, silence: float, data: str | None
) -> None:
    theirs = connect()
    broker.tube("t", kind="fifo").put("x")
    take(theirs.tube("t"))
    clock.advance(silence)
    task = broker.tube("t").take(0)
    assert (task and task.data) == data


def test_a_lapsed_session_cannot_settle(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    tube, theirs = broker.tube("t", kind="fifo"), connect()
    tube.put("x")
    late = take(theirs.tube("t"))
    clock.advance(15)
    task = take(tube)
    with pytest.raises(penstock.NotTaken):
        late.ack()
    task.ack()


def test_a_broker_whose_session_lapsed_takes_in_a_new_one(
    broker: penstock.Broker, connect: Connect, clock: Clock
) -> None:
    tube, theirs = broker.tube("t", kind="fifo"), connect().tube("t")
    tube.put("x")
    take(theirs)
    clock.advance(15)
    take(tube).ack()
    tube.put("y")
    assert take(theirs).data == "y"


@pytest.mark.parametrize("first", ["another", "its own beat"])
def test_a_blocked_take_of_a_lapsed_session_takes_nothing(
    broker: penstock.Broker, connect: Connect, clock: Clock, first: str
) -> None:
    tube, theirs = broker.tube("t", kind="fifo"), connect()
    session = theirs.session()
    waiting = begin(lambda: session.tube("t").take(60))
    until(lambda: waiters(broker, "t") == 1)
    clock.advance(15)
    if first == "its own beat":
        theirs.runtime.send_heartbeats()
    tube.stats()
    tube.put("x")
    assert waiting.result(timeout=30) is None
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_lapsed_session_with_a_ttr_keeps_its_tasks_that_long(
    broker: penstock.Broker, connect: Connect, clock: Clock
) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put("x")
    take(connect().session(ttr=5).tube("t"))
    clock.advance(15)
    assert tube.take(0) is None
    clock.advance(5)
    assert take(tube).attempts == 2
