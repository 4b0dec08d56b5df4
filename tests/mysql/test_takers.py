"""Takers do not stand in each other's way, and nothing a step does needs more than one round trip."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pymysql
import pytest

import penstock
from tests.behaviour.verbs import drain, take
from tests.mysql.conftest import Connection
from tests.quiet import quiet
from tests.threads import begin, until


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_a_taker_passes_by_what_another_is_taking(broker: penstock.Broker, own: Connection, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    for place in range(10):
        tube.put(place, **({"utube": place} if kind == "utube" else {}))  # type: ignore[arg-type]
    take(tube).release()
    handle, no = broker._seat.handle, tube._stored.no
    own.begin()
    own.cursor().execute(f"CALL penstock_take('[{no}]', 4, '{handle}', 1e300, 0, 0, NULL, 1)")
    theirs = begin(lambda: tube.take_many(4)).result(30)
    own.rollback()
    assert [task.data for task in theirs] == [4, 5, 6, 7]
    assert [task.data for task in tube.take_many(10)] == [0, 1, 2, 3, 8, 9]


def test_who_removes_cancelled_work_waits_for_no_micro_queue(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t", kind="utube")
    group = tube.group("g")
    group.put_many((name, {"utube": name}) for name in "aabb")
    group.start()
    tube.put("behind a", utube="a")
    tube.put("behind b", utube="b")
    no = tube._stored.no
    _read_committed(own).execute(f"SELECT 1 FROM penstock_lane WHERE tube = {no} AND utube = 'a' FOR UPDATE")
    begin(group.cancel).result(30)
    task = begin(lambda: tube.take(0)).result(30)
    assert task is not None
    assert task.data == "behind b"
    own.rollback()
    assert take(tube).data == "behind a"
    assert group.wait(0) == "cancelled"
    assert broker.check() == []


def test_a_kick_does_not_wait_for_cancelled_work_in_another_s_hands(broker: penstock.Broker, own: Connection) -> None:
    """Who has it may wait for the group, which the kick has locked."""
    tube = broker.tube("t")
    tube.bury(tube.put("buried").id)
    group = tube.group("g")
    group.put_many(["theirs", "other"])
    group.start()
    _read_committed(own).execute(f"SELECT 1 FROM penstock_task WHERE tube = {tube._stored.no} AND id = 2 FOR UPDATE")
    begin(group.cancel).result(30)
    assert begin(lambda: tube.kick(9)).result(30) == 1
    own.rollback()
    assert drain(tube) == ["buried"]
    assert group.wait(0) == "cancelled"


def test_a_put_in_progress_does_not_hold_takers_up(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t")
    tube.put("ready")
    own.begin()
    broker.bind(own).tube("t").put("not yet")
    task = begin(lambda: tube.take(0)).result(30)
    assert task is not None
    begin(task.ack).result(30)
    own.rollback()
    assert tube.stats().calls.put == 1


@pytest.mark.parametrize("due", [0, 2])
def test_who_does_what_is_due_locks_nothing_beyond(broker: penstock.Broker, own: Connection, due: int) -> None:
    tube = broker.tube("t")
    tube.put_many(["due"] * due, ttr=60)
    assert len(tube.take_many(9)) == due
    tube.put("ready")
    _read_committed(own).execute(f"CALL penstock_due({tube._stored.no}, 1000, {2**51}, @count)")
    task = begin(lambda: tube.take(0)).result(30)
    own.rollback()
    assert task is not None
    assert task.data == "ready"


@pytest.mark.parametrize("there", [1, 2])
def test_a_take_of_the_urgent_locks_nothing_less_urgent(broker: penstock.Broker, own: Connection, there: int) -> None:
    tube = broker.tube("t")
    tube.put_many([("urgent", {"pri": 0}), ("slow", {"pri": 5})][-there:])
    lease = f"CALL penstock_lease({tube._stored.no}, 9, 4, 1, 1, 0, 0, 1, 0, 'lease', {2**40}, @got)"
    _read_committed(own).execute(lease)
    task = begin(lambda: tube.take(0)).result(30)
    own.rollback()
    assert task is not None
    assert task.data == "slow"


def test_counters_in_progress_hold_nobody_up(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t")
    tube.put_many(range(200))
    _read_committed(own).execute("CALL penstock_fold()")
    for task in begin(lambda: tube.take_many(100)).result(30):
        begin(task.ack).result(30)
    own.commit()
    assert tube.stats().tasks.done == 100
    assert broker.check() == []


@pytest.mark.parametrize("what", ["handle SET lapses = lapses + 1", "session SET ends = NULL", "task SET at = at + 1"])
def test_a_taker_waits_for_nobody_whose_moments_it_looks_at(
    broker: penstock.Broker, own: Connection, what: str
) -> None:
    tube = broker.tube("t", ttr=60)
    tube.put_many(range(4))
    with broker.session() as other:
        take(other.tube("t"))
        mine = take(tube)
        changed = _read_committed(own)
        key = {"handle": other._seat.handle, "session": other.id, "task": 1}[what.split()[0]]
        changed.execute(f"UPDATE penstock_{what} WHERE id = %s", (key,))
        assert [begin(lambda: take(tube)).result(30).data, len(begin(lambda: tube.take_many(9)).result(30))] == [2, 1]
        begin(mine.ack).result(30)
        own.rollback()


@pytest.mark.parametrize("tasks", [2, 200])
def test_an_ack_locks_its_task_alone(broker: penstock.Broker, own: Connection, tasks: int) -> None:
    tube = broker.tube("t")
    tube.put_many(range(tasks))
    one, *others = tube.take_many(tasks)
    cursor = _read_committed(own)
    cursor.execute(f"CALL penstock_ack_one({tube._stored.no}, {broker._seat.number}, {one.id}, {one.lease}, NULL)")
    assert not cursor.fetchall()
    begin(others[0].ack).result(30)
    assert begin(lambda: tube.ack_many(others[1:])).result(30) == [True] * (tasks - 2)
    begin(lambda: tube.put("more")).result(30)
    assert begin(lambda: take(tube)).result(30).data == "more"
    own.rollback()
    one.ack()
    assert broker.check() == []


def _read_committed(own: Connection) -> pymysql.cursors.Cursor:
    """A transaction that is begun, with the isolation that all our connections have."""
    own.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    own.begin()
    return own.cursor()


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The packets that are sent, each answered before the next, and the threads that send them."""
    sent: list[tuple[int, str]] = []
    write = pymysql.connections.Connection._write_bytes  # type: ignore[attr-defined]

    def counted(self: Connection, packet: bytes) -> None:
        if packet[3] == 0:  # else it is part of a conversation that opens a connection
            sent.append((threading.get_ident(), str(packet)))
        write(self, packet)

    monkeypatch.setattr(pymysql.connections.Connection, "_write_bytes", counted)
    # Else on a slow machine the server's clock is asked anew, and a session without beats begins anew, amid a verb.
    monkeypatch.setattr("penstock.store.mysql.calls._CLOCK_SECONDS", 600.0)
    monkeypatch.setattr("penstock.store.mysql.sessions.LAPSE_MS", 600_000)
    return sent


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_one_round_trip_a_verb(broker: penstock.Broker, packets: list[tuple[int, str]], kind: str) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=None if kind == "fifottl" else 5000)
    tube.put("first")
    take(tube).ack()  # joined, connected
    handed: list[penstock.Task] = []
    verbs: dict[str, Callable[[], object]] = {
        "put": lambda: tube.put("x"),
        "put later": lambda: tube.put("x", delay=60),
        "put_many": lambda: tube.put_many(range(1000)),
        "take": lambda: handed.append(take(tube)),
        "touch": lambda: handed[0].touch(5),
        "release": lambda: handed[0].release(),
        "take_many": lambda: handed.extend(tube.take_many(1000)),
        "ack_many": lambda: tube.ack_many(handed[1:900]),
        "ack": lambda: handed[900].ack(),
        "bury": lambda: handed[901].bury(),
        "kick": lambda: tube.kick(),
        "delete": lambda: tube.delete(handed[901].id),
    }
    for name, verb in verbs.items():
        quiet(broker)
        del packets[:]
        verb()
        trips = [sql[:60] for thread, sql in packets if thread == threading.get_ident()]  # not the keeper's heartbeat
        assert len(trips) == 1, (name, trips)


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_one_round_trip_a_verb_of_tied_tasks(
    broker: penstock.Broker, packets: list[tuple[int, str]], kind: str
) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=None if kind == "fifottl" else 5000)
    tube.put("first")
    take(tube).ack()  # joined, connected
    handed: list[penstock.Task] = []
    group = tube.group("g")
    verbs: dict[str, Callable[[], object]] = {
        "put": lambda: tube.put("x", address="a", reply_to="replies"),
        "ignore": lambda: tube.put("y", address="a", on_duplicate="ignore"),
        "replace": lambda: tube.put("y", address="a", on_duplicate="replace"),
        "put_many": lambda: tube.put_many([(n, {"address": str(n)}) for n in range(1000)], reply_to="replies"),
        "take_many": lambda: handed.extend(tube.take_many(10)),
        "ack": lambda: handed[0].ack("result"),
        "ack_many": lambda: tube.ack_many(handed[1:8]),
        "fail": lambda: handed[8].fail("broken", 7),
        "delete": lambda: handed[9].bury(),
        "group": lambda: tube.group("g"),
        "group.put_many": lambda: group.put_many(range(10)),
        "on_end": lambda: group.on_end("end"),
        "start": lambda: group.start(),
        "cancel": lambda: group.cancel(),
    }
    for name, verb in verbs.items():
        quiet(broker)
        del packets[:]
        verb()
        trips = [sql[:60] for thread, sql in packets if thread == threading.get_ident()]  # not the keeper's heartbeat
        assert len(trips) == 1, (name, trips)


def test_one_round_trip_a_verb_of_unleased_kinds(broker: penstock.Broker, packets: list[tuple[int, str]]) -> None:
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put("first", id="first")
    take(feeds)  # joined, connected
    names = [(n, {"id": str(n)}) for n in range(1000)]
    popped: list[penstock.Task] = []
    verbs: dict[str, Callable[[], object]] = {
        "put": lambda: feeds.put("x", id="x"),
        "put again": lambda: feeds.put("y", id="x"),
        "replace": lambda: feeds.put("z", id="x", on_duplicate="replace"),
        "put_many": lambda: feeds.put_many(names),
        "take": lambda: take(feeds),
        "take_many": lambda: feeds.take_many(1001),
        "take nothing": lambda: feeds.take(0),
        "peek": lambda: feeds.peek("x"),
        "delete": lambda: feeds.delete("x"),
        "push": lambda: queue.put_many(range(1000)),
        "pop": lambda: popped.extend(queue.take_many(1000)),
        "inspect": lambda: queue.inspect(-10, 10, pending=True),
        "recover": lambda: queue.recover(1000, 0),
        "ack": lambda: queue.ack(popped[0].id),
        "ack_many": lambda: queue.ack_many(popped),
    }
    for name, verb in verbs.items():
        quiet(broker)
        del packets[:]
        verb()
        trips = [sql[:60] for thread, sql in packets if thread == threading.get_ident()]  # not the keeper's heartbeat
        assert len(trips) == 1, (name, trips)


@pytest.mark.parametrize("verb", ["start", "cancel"])
def test_tasks_that_follow_their_group_hold_nobody_up(broker: penstock.Broker, own: Connection, verb: str) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put("first")
    group = tube.group("g")
    group.put_many(range(3_000))
    if verb == "cancel":
        group.start()
        tube.stats()  # all have followed
    tube.put("last")
    getattr(group, verb)()
    own.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")  # as all our connections are
    own.begin()
    own.cursor().execute(f"CALL penstock_turned({tube._stored.no}, NULL)")
    tasks = begin(lambda: tube.take_many(2)).result(30)
    assert [task.data for task in tasks] == ["first", "last" if verb == "cancel" else 0]
    begin(tasks[0].ack).result(30)
    begin(lambda: tube.put("more")).result(30)
    own.commit()
    assert tube.stats().tasks.done == (3_001 if verb == "cancel" else 1)
    assert broker.check() == []


def test_an_idle_taker_sends_only_its_scans(broker: penstock.Broker, packets: list[tuple[int, str]]) -> None:
    tube, watch = broker.tube("t"), broker._hub.store._watch  # type: ignore[attr-defined]
    waiting = begin(lambda: tube.take(60))
    until(lambda: watch._watching and watch._looked >= watch._active_until)  # the looks after something happened end
    before, began = len(packets), time.monotonic()
    with contextlib.suppress(TimeoutError):
        waiting.result(3)
    sent, scans = packets[before:], int(time.monotonic() - began) + 1
    # A look and a take for each scan, a heartbeat of five statements in five seconds; looks that had not ended were
    # fifty a second.
    assert len(sent) <= scans * 3 + 12, sent
    tube.put("x")
    assert waiting.result(30) is not None
