"""Bugs that the machine found, each in as few calls as possible, repeated in every run on every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks, waiters
from tests.support.quiet_broker import quiet
from tests.support.threads import begin, until
from tests.support.verbs import take


@pytest.mark.parametrize("ways", ["stats", "kick", "take"])
def test_a_delayed_task_may_come_back_to_an_idle_fair_micro_queue(
    broker: penstock.Broker, clock: Clock, ways: str
) -> None:
    """Its idle entry was forgotten in the step that made the task ready, so its limit was not applied."""
    tube = broker.tube("t", kind="utubettl", fair=True)
    tube.put("a", utube="u")
    tube.put_many(["b", "c"], utube="u", delay=1)
    take(tube).ack()
    clock.advance(1)
    looks: dict[str, Callable[[], object]] = {"stats": tube.stats, "kick": tube.kick, "take": lambda: tube.take(0)}
    looks[ways]()
    assert broker.check() == []
    tube.take(0)
    assert tasks(tube) == {"taken": 1, "ready": 1, "done": 1, "total": 2}
    assert tube.take(0) is None


def test_a_session_closed_after_it_lapsed_ended_when_it_lapsed(
    broker: penstock.Broker, connect: Connect, clock: Clock
) -> None:
    tube, session = broker.tube("t", kind="fifo"), connect().session(ttr=4)
    tube.put("x")
    take(session.tube("t"))
    clock.advance(17)
    session.close()
    clock.advance(2)  # 15 s until it lapsed and 4 of its ttr
    assert take(tube).attempts == 2


def test_a_lapsed_session_that_can_be_joined_is_shown(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    session = connect().session(ttr=4)
    clock.advance(16)
    assert [seen.id for seen in broker.sessions()] == [session.id]
    clock.advance(3)
    assert broker.sessions() == []


@pytest.mark.parametrize("look", ["beat", "join", "sessions"])
def test_the_end_of_a_session_is_reported_by_any_process(
    broker: penstock.Broker, connect: Connect, clock: Clock, look: str
) -> None:
    """A session that ended during a heartbeat woke nobody, and on_change was not called."""
    reported: list[str] = []
    theirs, other = connect(), connect()
    tube = broker.tube("t", kind="fifo")
    tube.on_change(lambda task, event: reported.append(event))
    tube.put("x")
    take(theirs.tube("t"))
    clock.advance(15)
    looks: dict[str, Callable[[], object]] = {
        "beat": other.runtime.send_heartbeats,
        "join": other.session,
        "sessions": other.sessions,
    }
    looks[look]()
    tube.stats()
    assert reported == ["put", "release"]
    assert calls(tube) == {"put": 1, "take": 1, "release": 1}


def test_a_blocked_taker_is_woken_by_the_end_of_a_session(
    broker: penstock.Broker, connect: Connect, clock: Clock
) -> None:
    """As above, with a blocked taker: another process's scan must not consume its wake-up."""
    theirs, waiting = connect(), connect()
    quiet(theirs)  # it sends no heartbeats, however long the rest takes
    tube = broker.tube("t", kind="fifo")
    tube.put("x")
    take(theirs.tube("t"))
    future = begin(lambda: waiting.tube("t").take(60))
    until(lambda: waiters(broker, "t") == 1)
    clock.advance(5)
    waiting.runtime.send_heartbeats()
    clock.advance(10)
    broker.sessions()
    tube.stats()
    task = future.result(timeout=30)
    assert task is not None
    assert task.attempts == 2


def test_a_refused_drop_loses_no_event(broker: penstock.Broker, clock: Clock) -> None:
    """The drop applied what was due, then raised, and lost the events: a call that raises must change nothing."""
    reported: list[str] = []
    tube = broker.tube("t")
    tube.on_change(lambda task, event: reported.append(event))
    tube.put("held")
    take(tube)
    tube.put("x", ttl=1)
    clock.advance(1)
    with pytest.raises(penstock.TubeBusy):
        tube.drop()
    tube.stats()
    assert reported == ["put", "take", "put", "ttl"]


def test_a_task_demoted_and_replaced_in_one_put_is_counted_once(broker: penstock.Broker) -> None:
    """It was replaced as the head that it had been before the call, and its micro-queue had two heads."""
    tube = broker.tube("t", kind="utubettl")
    tube.put_many(["waits", ("head", {"address": "a", "pri": 1})], pri=2)
    tube.put_many(["urgent", ("new", {"address": "a", "on_duplicate": "replace", "pri": 3})], pri=0)
    assert broker.check() == []
    assert [take(tube).data, tube.take(0)] == ["urgent", None]


def test_a_cancel_deletes_work_whose_ttl_has_ended_meanwhile(broker: penstock.Broker, clock: Clock) -> None:
    """Nothing applied the ttl in between, so the cancel comes first on every store."""
    tube = broker.tube("t")
    group = tube.group("g")
    group.put_many(["a", "b"], ttl=5)
    group.start()
    clock.advance(5)
    group.cancel()
    assert calls(tube) == {"put": 2, "delete": 2}
