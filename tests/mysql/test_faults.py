"""Broken connections to the server: nothing acknowledged is lost, and what can be retried is retried."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pymysql
import pytest

import penstock
from penstock.engine.port import Conflict
from penstock.store.mysql.mysql_connection import Link, MysqlServer, parse
from penstock.store.mysql.mysql_wire import Answer
from penstock.testing import Clock
from tests.mysql.conftest import Connection
from tests.mysql.databases import fresh_url, numbers
from tests.servers import started
from tests.servers.mariadb import Mariadb
from tests.support.inspection import findings_in_use
from tests.support.threads import begin, until
from tests.support.verbs import take


@pytest.fixture
def server() -> Iterator[Mariadb]:
    with started(Mariadb) as server:
        yield server


@pytest.fixture
def database(patient: None, url: str) -> Iterator[MysqlServer]:
    database = MysqlServer(parse(url))
    yield database
    database.close()


def others(own: Connection) -> list[int]:
    """The connections to this database except our own."""
    cursor = own.cursor()
    cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
    return [int(id) for (id,) in cursor.fetchall()]


def busy(own: Connection, state: str) -> list[int]:
    """The connections in a statement of that state: 'User sleep' is a SLEEP, 'User lock' a GET_LOCK."""
    cursor = own.cursor()
    cursor.execute(f"SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND state = '{state}'")
    return [int(str(id)) for (id,) in cursor.fetchall()]


def kill_all(own: Connection) -> None:
    """Kill the connections that exist now; a heartbeat may open another at any time."""
    killed = others(own)
    for id in killed:
        own.cursor().execute(f"KILL {id}")
    until(lambda: not {*killed} & {*others(own)})


def test_killed_connections_are_not_noticed_by_the_next_call(broker: penstock.Broker, own: Connection) -> None:
    tube = broker.tube("t")
    tube.put("a")
    kill_all(own)
    tube.put("b")
    kill_all(own)
    task = take(tube)
    kill_all(own)
    task.ack()
    assert [task.data for task in tube.tasks()] == ["b"]


def test_a_server_restarted_under_a_broker(server: Mariadb) -> None:
    with penstock.connect(fresh_url(server.url), clock=Clock()) as broker:  # no lease ends, however long it takes
        tube = broker.tube("t", ttr=60)
        tube.put_many(["a", "b"])
        held = take(tube)
        server.kill()
        with pytest.raises(penstock.StoreUnavailable):
            tube.put("lost")
        server.start()
        assert tube.put("c").id == 3
        held.ack()
        assert [task.data for task in tube.take_many(5)] == ["b", "c"]
        assert broker.check() == []


def test_puts_while_the_server_is_killed_are_stored_or_raise(server: Mariadb) -> None:
    stored: list[int] = []
    unknown: list[int] = []
    with penstock.connect(fresh_url(server.url)) as broker:
        tube = broker.tube("t")
        ended = threading.Event()

        def put_on() -> None:
            for number in range(100_000):
                if ended.is_set():
                    return
                try:
                    tube.put(number)
                    stored.append(number)
                except penstock.OutcomeUnknown:
                    unknown.append(number)
                except penstock.StoreUnavailable:
                    ended.wait(0.05)

        putting = begin(put_on)
        until(lambda: len(stored) > 100)
        server.kill()
        before = len(stored)
        server.start()
        until(lambda: len(stored) > before + 100, 30)
        ended.set()
        putting.result(30)
        found = [task.data for task in tube.take_many(100_000)]
        assert set(stored) <= set(found)
        assert set(found) <= {*stored, *unknown}
        assert len(found) == len(set(found))


def test_a_write_killed_in_flight_has_an_unknown_outcome(database: MysqlServer, own: Connection) -> None:
    call = begin(lambda: database.send(["DO SLEEP(100)"]))
    until(lambda: busy(own, "User sleep") != [])
    kill_all(own)
    with pytest.raises(penstock.OutcomeUnknown):
        call.result(30)


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_a_take_whose_answer_was_lost_is_released(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tube = broker.tube("t", kind=kind, max_attempts=1)
    broker.tube("other", kind=kind)
    tube.put_many(["a", "b"])
    assert broker.take(["other"], 0) is None  # joined
    send = Link.send
    lost: list[Answer] = []

    def lose(link: Link, statements: Sequence[str], *, commit: bool = True) -> Answer:
        answer = send(link, statements, commit=commit)
        if "@p_stop=0" in str(statements[0]) and not lost:
            lost.append(answer)
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")
        return answer

    monkeypatch.setattr(Link, "send", lose)
    reported: list[tuple[object, str]] = []
    tube.on_change(lambda task, event: reported.append((task.data, event)))
    task = broker.take(["other", "t"], 0)
    assert task is not None
    assert len(lost) == 1
    assert (task.data, task.attempts, task.lease) == ("a", 1, 2)
    assert reported == [("a", "take")]
    stats = tube.stats()
    assert (stats.tasks.taken, stats.calls.take, stats.calls.release) == (1, 1, 0)
    task.ack()
    assert broker.check() == []


def test_a_read_killed_in_flight_is_retried(database: MysqlServer, own: Connection) -> None:
    own.cursor().execute("SELECT GET_LOCK('mine', 0)")
    call = begin(lambda: database.send(["SELECT GET_LOCK('mine', 60), 7"], safe=True))
    until(lambda: busy(own, "User lock") != [])
    [killed] = busy(own, "User lock")
    own.cursor().execute(f"KILL {killed}")
    until(lambda: busy(own, "User lock") not in ([], [killed]))
    own.cursor().execute("SELECT RELEASE_LOCK('mine')")
    assert call.result(30).results[0][0][1] == 7


def test_a_deadlock_restarts_the_whole_step(broker: penstock.Broker, database: MysqlServer, own: Connection) -> None:
    one, two = (broker.tube(name).stored.no for name in ("one", "two"))
    begun = threading.Barrier(2, timeout=30)
    tries: list[int] = []

    def lock_in_other_order(link: Link) -> None:
        tries.append(1)
        link.change("UPDATE penstock_id SET last = last + 1 WHERE tube = %s", (one,))
        if len(tries) == 1:
            begun.wait()
        link.change("UPDATE penstock_id SET last = last + 1 WHERE tube = %s", (two,))
        link.finish()

    own.begin()
    # The server rolls back the transaction with fewer changes: this one has more.
    own.cursor().execute(f"INSERT INTO penstock_counter (tube) {numbers(1, 100)} SELECT 0 FROM n")
    own.cursor().execute(f"UPDATE penstock_id SET last = last + 1 WHERE tube = {two}")
    step = begin(lambda: database.attempt(lock_in_other_order, safe=True, restart=True))
    begun.wait()
    own.cursor().execute(f"UPDATE penstock_id SET last = last + 1 WHERE tube = {one}")
    own.rollback()
    step.result(30)
    assert len(tries) == 2
    rows = database.send([f"SELECT last FROM penstock_id WHERE tube IN ({one}, {two})"]).results[0]
    assert [last for (last,) in rows] == [1, 1]


def test_endless_deadlocks_raise(database: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def lock_in_other_order(link: Link) -> None:
        tries.append(1)
        raise pymysql.err.OperationalError(1213, "Deadlock found")

    monkeypatch.setattr("penstock.store.sql.server.RETRY_SECONDS", 0.1)
    with pytest.raises(penstock.StoreBusy):
        database.attempt(lock_in_other_order, safe=True, restart=True)
    assert len(tries) > 1
    del tries[:]
    with pytest.raises(Conflict):  # the engine retries the step
        database.attempt(lock_in_other_order, safe=True)
    assert len(tries) == 1


def test_an_exhausted_pool_is_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.sql.server.WAIT_SECONDS", 0.1)
    with penstock.connect(f"{url}&pool_size=1" if "?" in url else f"{url}?pool_size=1") as broker:
        tube = broker.tube("t")
        held = broker.runtime.store.server.pool.borrow(1)  # type: ignore[attr-defined]
        with pytest.raises(penstock.StoreBusy, match="pool_size"):
            tube.put("x")
        broker.runtime.store.server.pool.give_back(held, usable=True)  # type: ignore[attr-defined]
        assert tube.put("x").id == 1


def test_a_missing_server_is_reported() -> None:
    with pytest.raises(penstock.StoreUnavailable, match="127.0.0.1:1"):
        penstock.connect("mysql://root:secret@127.0.0.1:1/jobs")


@pytest.mark.parametrize(
    "url",
    ["mysql://h", "mysql://h/", "mysql://h:x/d", "mysql://h/d?colour=red", "mysql://h/d?pool_size=0", "mysql://h/a/b"],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(penstock.BadValue):
        penstock.connect(url)


def test_a_check_finds_nothing_in_a_tube_that_is_in_use(broker: penstock.Broker) -> None:
    assert findings_in_use(broker) == []
