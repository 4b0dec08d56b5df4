"""Deadlines of every tube are applied within about a second, even if nobody takes from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

import penstock
from penstock.core.results import Counts, Overdue
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.quiet_broker import quiet
from tests.support.threads import until

# The period of the test, and time for a busy machine.
SOON = 10.0


@pytest.fixture(autouse=True)
def _impatient(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan often. Depends on the fixture `clock`, which switches the scan off."""
    monkeypatch.setattr("penstock.runtime.store_clock.CLOCK_SECONDS", 0.2)


def counted(tube: penstock.Tube) -> Counts:
    """The stored counters, read without applying what is due."""
    return tube.runtime.store.counters(tube.stored).counts


def drive(broker: penstock.Broker) -> None:
    """Join a session, as a worker and a server do, which starts the background thread."""
    assert broker.session().id


def test_tasks_of_every_tube_become_ready_and_expire_without_a_taker(
    connect: Connect, broker: penstock.Broker, clock: Clock
) -> None:
    drive(connect())
    delayed, old = broker.tube("delayed"), broker.tube("old", "utubettl")
    delayed.put_many(range(50), delay=5)
    old.put_many(range(20), ttl=5, utube="a")
    clock.advance(5)
    until(lambda: counted(delayed).ready == 50 and counted(old).stored == 0)
    assert counted(delayed).delay == 50
    assert counted(old).ttl == 20


def test_a_backlog_of_several_steps_is_removed(connect: Connect, broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttl=5)
    tube.put_many(range(2500))
    clock.advance(5)
    drive(connect())
    until(lambda: counted(tube).ttl == 2500)


def test_a_reply_to_an_expired_task_arrives_without_a_taker(
    connect: Connect, broker: penstock.Broker, clock: Clock
) -> None:
    broker.tube("orders").put("x", ttl=5, reply_to="answers")
    answers = connect().tube("answers")
    clock.advance(5)
    task = answers.take(SOON)
    assert task is not None
    assert isinstance(task.data, dict)
    assert task.data["status"] == "expired"


def test_a_lease_and_a_session_end_without_a_taker(connect: Connect, broker: penstock.Broker, clock: Clock) -> None:
    leased, held = broker.tube("leased", ttr=5), broker.tube("held", "fifo")
    leased.put("x")
    held.put("y")
    assert leased.take(0) is not None
    assert held.take(0) is not None
    quiet(broker)  # no heartbeats, like a dead process on another host
    clock.advance(5)
    drive(connect())
    until(lambda: counted(leased).ready == 1)
    clock.advance(20)
    drive(connect())
    until(lambda: counted(held).ready == 1)


def test_tasks_follow_their_group_and_outcomes_are_forgotten(
    connect: Connect, broker: penstock.Broker, clock: Clock
) -> None:
    tube = broker.tube("t", retention=5)
    group = tube.group("g")
    group.put_many(range(2500))
    tube.put("x", address="a", ttl=1)
    group.start()
    clock.advance(1)
    drive(connect())
    until(lambda: counted(tube).ready == 2500 and counted(tube).ttl == 1)
    store = tube.runtime.store
    assert store.outcomes(tube.stored, ["a"])[0].ending is not None
    clock.advance(5)
    until(lambda: not store.overdue().tubes)


def test_all_old_outcomes_are_forgotten(broker: penstock.Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.store_clock.CLOCK_SECONDS", 1e6)
    broker.runtime.drive_clock()  # now the background thread waits, which would otherwise forget them first
    tube = broker.tube("t", retention=5)
    tube.put_many([(n, {"address": str(n)}) for n in range(2500)])
    assert all(tube.ack_many(tube.take_many(2500)))
    store = tube.runtime.store
    assert store.outcomes(tube.stored, ["0", "2499"])[1].ending is not None
    clock.advance(5)
    until(lambda: not store.advance(tube.stored).more and not store.overdue().tubes)


def test_overdue_names_only_tubes_with_something_due(broker: penstock.Broker, clock: Clock) -> None:
    store = broker.runtime.store
    assert not store.overdue().tubes
    tubes = [broker.tube(f"t{n}") for n in range(5)]
    for n, tube in enumerate(tubes):
        tube.put("x", delay=n + 1)
        tube.put("y", ttl=100)
    assert not store.overdue().tubes
    clock.advance(2)
    assert sorted(tube.name for tube in store.overdue().tubes) == ["t0", "t1"]
    tubes[0].stats()
    tubes[1].drop()
    assert not store.overdue().tubes


def test_the_brokers_of_a_process_share_one_scan(
    connect: Connect, broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def counting(overdue: Callable[[], Overdue]) -> Callable[[], Overdue]:
        def look() -> Overdue:
            looks.append(time.monotonic())
            return overdue()

        return look

    for one in (broker, connect(), connect()):
        store = one.runtime.store
        monkeypatch.setattr(store, "overdue", counting(store.overdue))
        drive(one)
    until(lambda: len(looks) >= 3)
    assert all(later - earlier > 0.19 for earlier, later in pairwise(looks))


def test_every_broker_of_the_process_reports_events_of_the_clock(
    connect: Connect, broker: penstock.Broker, clock: Clock
) -> None:
    tube = broker.tube("t")
    events: list[str] = []
    tube.on_change(lambda task, event: events.append(event))
    drive(connect())
    tube.put("x", delay=5)
    clock.advance(5)
    until(lambda: events == ["put", "delay"])


def test_a_broker_that_only_puts_starts_no_thread(broker: penstock.Broker) -> None:
    before = set(threading.enumerate())
    tube = broker.tube("t")
    tube.put("x", delay=1)
    tube.put_many(range(10))
    tube.stats()
    assert not [thread for thread in set(threading.enumerate()) - before if "heartbeat" in thread.name]
