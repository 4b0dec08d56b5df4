"""Takers do not block each other, and no verb needs more round trips than necessary."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pymysql
import pytest

import penstock
from penstock.core.lifecycle import Move, became_due
from penstock.core.results import Effects, Presence
from penstock.core.task import record_of
from penstock.engine.port import ByIds, TakeRequest
from penstock.engine.work import Work
from penstock.store.mysql.mysql_queries import TIME, Q
from penstock.store.mysql.mysql_step import MysqlStep
from penstock.store.mysql.mysql_wire import fill
from tests.mysql.conftest import Connection
from tests.mysql.open_transaction import HeldServer, held_step
from tests.support.quiet_broker import quiet
from tests.support.threads import begin, until
from tests.support.verbs import take


@pytest.fixture
def held(url: str) -> Iterator[tuple[MysqlStep, HeldServer]]:
    """A step whose transaction stays open, and a function that ends it."""
    step, server = held_step(url)
    yield step, server
    server.end()
    server.close()


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_a_taker_skips_rows_that_another_is_taking(
    broker: penstock.Broker, held: tuple[MysqlStep, HeldServer], kind: str
) -> None:
    tube = broker.tube("t", kind=kind)
    for place in range(10):
        tube.put(place, **({"utube": place} if kind == "utube" else {}))  # type: ignore[arg-type]
    take(tube).release()
    step, server = held
    assert len(step.take(TakeRequest([tube.stored], 4, broker.session_handle.handle)).records) == 4
    theirs = begin(lambda: tube.take_many(4)).result(30)
    server.end()
    assert [task.data for task in theirs] == [4, 5, 6, 7]
    assert [task.data for task in tube.take_many(10)] == [0, 1, 2, 3, 8, 9]


def test_a_put_in_progress_does_not_delay_takers(broker: penstock.Broker, own: Connection) -> None:
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
def test_advance_locks_only_what_is_due(broker: penstock.Broker, held: tuple[MysqlStep, HeldServer], due: int) -> None:
    tube = broker.tube("t")
    tube.put_many(["due"] * due, ttr=60)
    taken = tube.take_many(9)
    assert len(taken) == due
    tube.put("ready")
    step, server = held
    work = Work(step, tube.stored, Effects())
    for record in work.load(ByIds([task.id for task in taken])):
        work.change(record, became_due(record, 2**51))
    work.flush()
    task = begin(lambda: tube.take(0)).result(30)
    server.end()
    assert task is not None
    assert task.data == "ready"


@pytest.mark.parametrize("there", [1, 2])
def test_a_take_of_the_urgent_locks_nothing_less_urgent(
    broker: penstock.Broker, held: tuple[MysqlStep, HeldServer], there: int
) -> None:
    tube = broker.tube("t")
    tube.put_many([("urgent", {"pri": 0}), ("slow", {"pri": 5})][-there:])
    broker.tube("other").take(0)  # joined
    step, server = held
    assert len(step.take(TakeRequest([tube.stored], 9, broker.session_handle.handle, max_pri=4)).records) == there - 1
    task = begin(lambda: tube.take(0)).result(30)
    server.end()
    assert task is not None
    assert task.data == "slow"


def test_uncommitted_counters_block_nobody(broker: penstock.Broker, held: tuple[MysqlStep, HeldServer]) -> None:
    tube = broker.tube("t")
    tube.put_many(range(200))
    step, server = held
    step.db.fold(tube.stored)
    for task in begin(lambda: tube.take_many(100)).result(30):
        begin(task.ack).result(30)
    server.end(commit=True)
    assert tube.stats().tasks.done == 100
    assert broker.check() == []


@pytest.mark.parametrize("what", ["handle SET until = until + 1", "session SET until = NULL", "task SET at = at + 1"])
def test_a_taker_that_applies_deadlines_waits_for_no_lock(broker: penstock.Broker, own: Connection, what: str) -> None:
    tube = broker.tube("t", ttr=60)
    tube.put_many(range(4))
    with broker.session() as other:
        take(other.tube("t"))
        mine = take(tube)
        changed = _read_committed(own)
        pk = tube.stored.no << 40 | 1
        column, key = {"handle": ("id", other.session_handle.handle), "session": ("id", other.id), "task": ("pk", pk)}[
            what.split()[0]
        ]
        changed.execute(f"UPDATE penstock_{what} WHERE {column} = %s", (key,))
        assert [begin(lambda: take(tube)).result(30).data, len(begin(lambda: tube.take_many(9)).result(30))] == [2, 1]
        begin(mine.ack).result(30)
        own.rollback()


def test_the_last_of_two_handles_that_leave_at_once_ends_their_session(
    patient: None, broker: penstock.Broker, own: Connection, held: tuple[MysqlStep, HeldServer]
) -> None:
    store, cursor, (step, server) = broker.runtime.store, own.cursor(), held
    joined = store.join(Presence("a", "host", 1, "here"), None, 60_000)
    store.join(Presence("b", "host", 2, "here"), joined.id, 60_000)
    step.link = server.connection  # so that nothing is committed
    step.remove_handle("a", joined.session)
    leaving = begin(lambda: store.leave(["b"]))
    until(lambda: leaving.done() or _waits_for_a_row(own))
    server.end(commit=True)
    leaving.result(30)
    cursor.execute(f"SELECT until IS NULL FROM penstock_session WHERE no = {joined.session}")
    assert cursor.fetchall() == ((0,),)


def test_a_handle_that_is_removed_during_its_take_leaves_no_waiter(
    patient: None, broker: penstock.Broker, own: Connection, held: tuple[MysqlStep, HeldServer]
) -> None:
    tube, store, (step, server) = broker.tube("t"), broker.runtime.store, held
    store.join(Presence("a", "host", 1, "here"), None, 0)
    assert step.take(TakeRequest([tube.stored], 1, "a")).alive  # has the locks that a take begins with
    leaving = begin(lambda: store.leave(["a"]))
    until(lambda: leaving.done() or _waits_for_a_row(own))
    step.take(TakeRequest([tube.stored], 1, "a", blocked="register", waiter=1))
    server.end(commit=True)
    leaving.result(30)
    assert broker.check() == []
    tube.drop()


def test_a_waiter_without_a_handle_is_not_stored(broker: penstock.Broker, held: tuple[MysqlStep, HeldServer]) -> None:
    """Whatever the take has found before: the statement itself locks the handle."""
    tube, (step, server) = broker.tube("t"), held
    add_waiter = fill(Q.add_waiter, ids=[tube.stored.no], handle="gone", number=1)
    step.send("SET @p_ses=1,@p_all=0,@p_due=0", add_waiter)
    server.end(commit=True)
    assert broker.check() == []
    tube.drop()


@pytest.mark.parametrize("count", [1, 2])
def test_a_lease_starts_when_the_take_has_its_locks(
    patient: None, broker: penstock.Broker, own: Connection, count: int
) -> None:
    """A take may wait longer for a lock than the ttr: its lease must not be over when it returns."""
    tube, cursor = broker.tube("t", ttr=60), own.cursor()
    tube.put_many(range(3))
    take(tube).release()  # joined

    def ask(sql: str) -> int:
        cursor.execute(f"SELECT {sql}")
        return int(str(cursor.fetchall()[0][0]))

    own.begin()
    ask(f"no FROM penstock_tube WHERE no = {tube.stored.no} FOR UPDATE")
    taking = begin(lambda: tube.take_many(count))
    until(lambda: _waits_for_a_row(own))
    waited = ask(TIME)
    until(lambda: ask(TIME) > waited + 20)
    own.commit()
    assert len(taking.result(30)) == count
    assert ask("MIN(taken) FROM penstock_task WHERE state = 't'") > waited
    assert broker.check() == []


@pytest.mark.parametrize("tasks", [2, 200])
def test_an_ack_locks_its_task_alone(broker: penstock.Broker, held: tuple[MysqlStep, HeldServer], tasks: int) -> None:
    tube = broker.tube("t")
    tube.put_many(range(tasks))
    one, *others = tube.take_many(tasks)
    step, server = held
    assert step.ack(tube.stored, [Move("ack", one.id, broker.session_handle.number, record_of(one).lease)]).keys == {
        one.id
    }
    begin(others[0].ack).result(30)
    assert begin(lambda: tube.ack_many(others[1:])).result(30) == [True] * (tasks - 2)
    begin(lambda: tube.put("more")).result(30)
    assert begin(lambda: take(tube)).result(30).data == "more"
    server.end()
    one.ack()
    assert broker.check() == []


@pytest.mark.parametrize("stale", [0, 1])
def test_an_ack_of_very_many_tasks_waits_for_no_other(broker: penstock.Broker, own: Connection, stale: int) -> None:
    """MariaDB reads the whole table for a list of more than 32,000 keys."""
    other, tube, many = broker.tube("other"), broker.tube("t"), 33_000
    other.put("x")
    tube.put_many(range(many))
    tasks = tube.take_many(many)
    for task in tasks[:stale]:
        task.release()
    _read_committed(own).execute(f"SELECT 1 FROM penstock_task WHERE pk = {other.stored.no << 40 | 1} FOR UPDATE")
    assert begin(lambda: tube.ack_many(tasks)).result(60) == [False] * stale + [True] * (many - stale)


def _waits_for_a_row(own: Connection) -> bool:
    """Whether any transaction of the server waits for a row lock."""
    cursor = own.cursor()
    cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return str(cursor.fetchall()[0][1]) != "0"


def _read_committed(own: Connection) -> pymysql.cursors.Cursor:
    """Begin a transaction with the isolation level of all our connections."""
    own.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    own.begin()
    return own.cursor()


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The packets that are sent, each after the answer to the one before, and the threads that send them."""
    sent: list[tuple[int, str]] = []
    write = pymysql.connections.Connection._write_bytes  # type: ignore[attr-defined]

    def counted(self: Connection, packet: bytes) -> None:
        if packet[3] == 0:  # otherwise it is part of opening a connection
            sent.append((threading.get_ident(), str(packet)))
        write(self, packet)

    monkeypatch.setattr(pymysql.connections.Connection, "_write_bytes", counted)
    # Otherwise a slow machine asks for the server's clock, and replaces a session without heartbeats, during a verb.
    monkeypatch.setattr("penstock.store.sql.server_step.CLOCK_SECONDS", 600.0)
    monkeypatch.setattr("penstock.engine.sessions.LAPSE_MS", 600_000)
    monkeypatch.setattr("penstock.store.mysql.mysql_store.MysqlStore.fold_chance", 0.0)
    return sent


def count_trips(
    broker: penstock.Broker, packets: list[tuple[int, str]], verbs: dict[str, tuple[int, Callable[[], object]]]
) -> None:
    """Assert the round trips of each verb, made twice: the first call prepares statements."""
    for name, (most, verb) in verbs.items():
        quiet(broker)
        del packets[:]
        verb()
        trips = [sql[:200] for thread, sql in packets if thread == threading.get_ident()]  # not the heartbeat thread
        assert len(trips) == most, (name, trips)


def test_many_tubes_are_read_in_one_round_trip(broker: penstock.Broker, packets: list[tuple[int, str]]) -> None:
    tubes = [broker.tube(f"t{number}").stored for number in range(50)]
    count_trips(broker, packets, {"counters": (1, lambda: broker.runtime.store.counters(tubes))})


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_round_trips_of_verbs(broker: penstock.Broker, packets: list[tuple[int, str]], kind: str) -> None:
    """Hot verbs need one; others load rows and then flush the decision."""
    tube = broker.tube("t", kind=kind, utube_limit=None if kind == "fifottl" else 5000)
    tube.put("first")
    take(tube).ack()  # joined, connected
    handed: list[penstock.Task] = []
    verbs: dict[str, tuple[int, Callable[[], object]]] = {
        "put": (1, lambda: tube.put("x")),
        "put later": (1, lambda: tube.put("x", delay=60)),
        "put_many": (1, lambda: tube.put_many(range(1000))),
        "take": (1, lambda: handed.append(take(tube))),
        "touch": (1, lambda: handed[0].touch(5)),
        "release": (1, lambda: handed[0].release()),
        "take_many": (1, lambda: handed.extend(tube.take_many(1000))),
        "ack_many": (1, lambda: tube.ack_many(handed[1:900])),
        "ack": (1, lambda: handed[900].ack()),
        # The first packet is refused and rolled back; the engine then does what is left of it.
        "ack_many, one stale": (4, lambda: tube.ack_many([handed[0], handed[902]])),
        "bury": (1, lambda: handed[901].bury()),
        "kick": (4, lambda: tube.kick()),
        "delete": (2, lambda: tube.delete(handed[901].id)),
    }
    count_trips(broker, packets, verbs)


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_round_trips_of_verbs_of_tasks_with_relations(
    broker: penstock.Broker, packets: list[tuple[int, str]], kind: str
) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=None if kind == "fifottl" else 5000)
    broker.tube("replies")
    tube.put("first", address="first", group="first")
    tube.group("first").start()
    take(tube).ack()  # joined, connected
    handed: list[penstock.Task] = []
    group = tube.group("g")
    verbs: dict[str, tuple[int, Callable[[], object]]] = {
        "put": (1, lambda: tube.put("x", address="a")),
        "put_many": (1, lambda: tube.put_many([(n, {"address": str(n)}) for n in range(1000)])),
        "take_many": (1, lambda: handed.extend(tube.take_many(10))),
        "ack": (1, lambda: handed[0].ack("result")),
        "ack_many": (1, lambda: tube.ack_many(handed[1:8])),
        "fail": (1, lambda: handed[8].fail("broken", 7)),
        "group.put_many": (1, lambda: group.put_many(range(10))),
    }
    count_trips(broker, packets, verbs)


def test_round_trips_of_unleased_kinds(broker: penstock.Broker, packets: list[tuple[int, str]]) -> None:
    feeds, queue = broker.tube("feeds", kind="round", period=1000), broker.tube("queue", kind="reliable")
    feeds.put("first", id="first")
    take(feeds)  # joined, connected
    names = [(n, {"id": str(n)}) for n in range(1000)]
    popped: list[penstock.Task] = []
    verbs: dict[str, tuple[int, Callable[[], object]]] = {
        "put": (1, lambda: feeds.put("x", id="x")),
        "put_many": (1, lambda: feeds.put_many(names)),
        "take": (1, lambda: take(feeds)),
        "take_many": (1, lambda: feeds.take_many(1001)),
        "take nothing": (1, lambda: feeds.take(0)),
        "delete": (2, lambda: feeds.delete("x")),
        "push": (1, lambda: queue.put_many(range(1000))),
        "pop": (1, lambda: popped.extend(queue.take_many(1000))),
        "inspect": (1, lambda: queue.inspect(-10, 10, pending=True)),
        "recover": (1, lambda: queue.recover(1000, 0)),
        "ack": (1, lambda: queue.ack(popped[0].id)),
        "ack_many": (1, lambda: queue.ack_many(popped[1:])),
    }
    count_trips(broker, packets, verbs)


@pytest.mark.parametrize("verb", ["start", "cancel"])
def test_tasks_that_follow_their_group_block_nobody(
    broker: penstock.Broker, held: tuple[MysqlStep, HeldServer], verb: str
) -> None:
    tube = broker.tube("t", kind="fifo")
    tube.put("first")
    group = tube.group("g")
    group.put_many(range(3_000))
    if verb == "cancel":
        group.start()
        tube.stats()  # all have followed
    tube.put("last")
    getattr(group, verb)()
    step, server = held
    Work(step, tube.stored, Effects()).update_members([group._no], 10)
    begin(lambda: tube.put("more")).result(30)
    server.end()
    tasks = tube.take_many(2)
    assert [task.data for task in tasks] == ["first", "last" if verb == "cancel" else 0]
    tasks[0].ack()
    assert tube.stats().tasks.done == (3_001 if verb == "cancel" else 1)
    assert broker.check() == []


def test_an_idle_taker_sends_only_its_scans(broker: penstock.Broker, packets: list[tuple[int, str]]) -> None:
    tube, watch = broker.tube("t"), broker.runtime.store.watcher  # type: ignore[attr-defined]
    waiting = begin(lambda: tube.take(60))
    # The takes that follow an event have ended.
    until(lambda: watch._watching and time.monotonic() >= watch._active_until)
    before, began = len(packets), time.monotonic()
    with contextlib.suppress(TimeoutError):
        waiting.result(3)
    sent, scans = packets[before:], int(time.monotonic() - began) + 1
    # A check and a take for each scan, a heartbeat of five statements in five seconds; takes that had not ended were
    # fifty a second.
    assert len(sent) <= scans * 3 + 12, sent
    tube.put("x")
    assert waiting.result(30) is not None
