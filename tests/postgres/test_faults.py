"""Failures between a broker and its server, and their effects."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

import penstock
from penstock.engine.store import load_tube
from penstock.store.postgres import postgres_connection as connection
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.postgres_store import MIGRATIONS
from penstock.testing import Clock
from tests.servers.postgres import Postgres
from tests.support.inspection import findings_in_use
from tests.support.threads import begin, until


@pytest.fixture
def admin(server: Postgres) -> Iterator[psycopg.Connection]:
    """An administrator's connection to the same server."""
    with psycopg.connect(server.url, autocommit=True) as db:
        yield db


def schema_of(url: str) -> str:
    return locate(url).quoted


def cut_all(admin: psycopg.Connection) -> int:
    """End all other connections, and wait until they have ended."""
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    ended = [pid for pid, _ in admin.execute(f"SELECT pid, pg_terminate_backend(pid) {others}")]
    until(lambda: not admin.execute("SELECT FROM pg_stat_activity WHERE pid = ANY(%s)", [ended]).rowcount)
    return len(ended)


def waiting(admin: psycopg.Connection) -> int:
    """The number of server processes that wait for a lock."""
    return admin.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").rowcount


def waits_for_a_lock(admin: psycopg.Connection) -> bool:
    return waiting(admin) > 0


def test_connections_cut_while_idle_are_not_noticed(broker: penstock.Broker, admin: psycopg.Connection) -> None:
    tube = broker.tube("work")
    tube.put("one")
    assert cut_all(admin)
    tube.put("two")
    task = tube.take(0)
    assert task is not None
    cut_all(admin)
    task.ack()
    assert tube.stats().calls.put == 2


def test_a_connection_cut_during_a_put_leaves_its_outcome_unknown(
    broker: penstock.Broker, url: str, admin: psycopg.Connection
) -> None:
    tube = broker.tube("work", capacity=5)
    with psycopg.connect(locate(url).conninfo) as other:
        other.execute(f"SELECT FROM {schema_of(url)}.penstock_counter FOR UPDATE")
        putting = begin(lambda: tube.put("x"))
        until(lambda: waits_for_a_lock(admin))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with pytest.raises(penstock.OutcomeUnknown):
            putting.result(30)
    assert tube.put("y").id is not None


def test_a_lock_held_for_too_long_is_busy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.SETTINGS, "lock_timeout", "50ms")
    with penstock.connect(url) as broker:
        tube = broker.tube("work", capacity=5)
        with psycopg.connect(locate(url).conninfo) as other:
            other.execute(f"SELECT FROM {schema_of(url)}.penstock_counter FOR UPDATE")
            with pytest.raises(penstock.StoreBusy):
                tube.put("x")
        tube.put("y")
        assert tube.stats().calls.put == 1


def test_a_pool_without_a_free_connection_is_busy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(f"{url}&pool_size=1") as broker:
        tube = broker.tube("work", capacity=5)
        monkeypatch.setattr("penstock.store.sql.server.WAIT_SECONDS", 0.3)  # not earlier: connecting takes a while
        with psycopg.connect(locate(url).conninfo) as other:
            other.execute(f"SELECT FROM {schema_of(url)}.penstock_counter FOR UPDATE")
            putting = begin(lambda: tube.put("x"))
            until(lambda: waits_for_a_lock(other))
            with pytest.raises(penstock.StoreBusy, match="pool_size"):
                tube.put("y")
        putting.result(30)


def test_the_victim_of_a_deadlock_tries_again(broker: penstock.Broker, url: str, admin: psycopg.Connection) -> None:
    """A server process checks for deadlocks once per wait, after a second: the broker's is the last to wait."""
    tube = broker.tube("work")
    tube.put_many(["a", "b", "c"])
    held = f"SELECT FROM {schema_of(url)}.penstock_task WHERE data = %s FOR UPDATE"
    conninfo = locate(url).conninfo
    with psycopg.connect(conninfo) as other, psycopg.connect(conninfo) as third:
        other.execute("SET deadlock_timeout = '10min'")
        other.execute(held, (b'"c"',))
        third.execute(held, (b'"b"',))
        truncating = begin(tube.truncate)
        until(lambda: waiting(admin) == 1)
        crossing = begin(lambda: other.execute(held, (b'"a"',)))
        until(lambda: waiting(admin) == 2)
        third.rollback()
        crossing.result(30)
        other.commit()
    assert truncating.result(30) == 3
    assert tube.stats().tasks.total == 0


def test_two_takers_do_not_wait_for_each_other(url: str) -> None:
    with penstock.connect(url) as broker:
        plain, per_utube = broker.tube("plain"), broker.tube("per_utube", "utube")
        plain.put_many(["a", "b"])
        per_utube.put_many([("a", {"utube": "x"}), ("b", {"utube": "y"})])
        with psycopg.connect(locate(url).conninfo) as other, penstock.connect(url) as taker:
            # Takes of another client that are not committed yet.
            bound = broker.runtime.store.bind(other)
            session_handle = broker.session_handle
            for name in ("plain", "per_utube"):
                stored = load_tube(bound, name)
                assert stored is not None
                session_handle.join()
                assert len(bound.take([stored], 1, session_handle.handle).records) == 1
            tasks = [taker.tube(name).take(0) for name in ("plain", "per_utube")]
            assert [task and task.data for task in tasks] == ["b", "b"]
            other.rollback()


def test_a_check_finds_nothing_in_a_tube_that_is_in_use(broker: penstock.Broker) -> None:
    assert findings_in_use(broker) == []


def test_an_opened_session_survives_a_kill_of_its_process(server: Postgres) -> None:
    url = f"{server.fresh_url()}&options=-c%20synchronous_commit%3Don"
    with penstock.connect(url, clock=Clock()) as broker:  # no session lapses, however long it takes
        tube = broker.tube("t")
        tube.put("x")
        session = broker.session()
        server.restart()
        task = _tried(lambda: session.tube("t").take(0))
        assert task is not None
        assert [seen.held for seen in broker.sessions() if seen.id == session.id] == [[("t", task.id)]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_under_a_waiting_taker_loses_nothing(
    server: Postgres, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test server does not wait for its disk; with fsync, a kill loses nothing either.
    url = f"{server.fresh_url()}&options=-c%20synchronous_commit%3Don"
    with penstock.connect(url, clock=Clock()) as broker:  # no session lapses, however long it takes
        tube = broker.tube("work")
        tube.put_many(range(100))
        held = tube.take_many(10)
        tube.ack_many(held[:5])
        broker.tube("quiet")
        waiting = begin(lambda: broker.tube("quiet").take(250))
        until(lambda: any(session.waits for session in broker.sessions()))
        if how == "kill":
            server.kill()
        else:
            server._end(2)  # type: ignore[arg-type]  # SIGINT: PostgreSQL's fast shutdown
        with pytest.raises(penstock.StoreError), monkeypatch.context() as patch:
            patch.setattr("penstock.store.sql.server.WAIT_SECONDS", 0.5)
            tube.put("while it is away")
        server.start()
        assert _tried(lambda: tube.put("after")).data == "after"
        broker.tube("quiet").put("for the one who waits")
        task = waiting.result(30)
        assert task is not None
        assert task.data == "for the one who waits"
        assert tube.ack_many(held) == [False] * 5 + [True] * 5
        stats = tube.stats()
        assert (stats.calls.ack, stats.tasks.total) == (10, 91)
        assert broker.check() == []


def _tried(call: object) -> penstock.Task:
    """Retry the call until the store is available, as a program does."""
    ends = time.monotonic() + 60
    while True:
        try:
            return call()  # type: ignore[operator, no-any-return]
        except (penstock.StoreUnavailable, penstock.OutcomeUnknown):
            assert time.monotonic() < ends


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(penstock.StoreUnavailable, match="cannot be reached"):
        penstock.connect("postgresql://nobody@127.0.0.1:9/nothing")


def test_a_database_that_is_not_there_is_unavailable(server: Postgres) -> None:
    with pytest.raises(penstock.StoreUnavailable):
        penstock.connect(server.url.replace("/postgres", "/nothing"))


@pytest.mark.parametrize(
    "parameter", ["schema=a-b", "schema=", "notify=yes", "pool_size=0", "pool_size=x", "colour=red"]
)
def test_a_wrong_parameter_is_refused(server: Postgres, parameter: str) -> None:
    with pytest.raises(penstock.BadValue):
        penstock.connect(f"{server.url}?{parameter}")


def test_no_message_contains_the_password() -> None:
    with pytest.raises(penstock.BadValue) as raised:
        penstock.connect("postgresql://ann:geheim@127.0.0.1:9/x?colour=red")
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("number", [MIGRATIONS[-1].number + 1, 12])
def test_a_schema_of_another_version_is_refused(url: str, admin: psycopg.Connection, number: int) -> None:
    penstock.connect(url).close()
    admin.execute(f"UPDATE {schema_of(url)}.penstock_meta SET value = '{number}' WHERE name = 'schema'")
    with pytest.raises(penstock.SchemaMismatch, match=f"schema {number}"):
        penstock.connect(url)


def test_brokers_that_open_a_new_store_at_once_make_one(url: str) -> None:
    opening = [begin(lambda: penstock.connect(url)) for _ in range(6)]
    brokers = [future.result(30) for future in opening]
    assert len({broker.runtime.store.identity for broker in brokers}) == 1
    for broker in brokers:
        broker.close()


def test_a_forked_child_has_its_own_connections(broker: penstock.Broker) -> None:
    tube = broker.tube("work")
    tube.put_many(["a", "b", "c"])
    mine = tube.take(0)
    child = os.fork()
    if child == 0:
        try:
            task = tube.take(0)
            assert task is not None
            task.ack()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine is not None
    mine.ack()
    assert tube.stats().tasks.total == 1


@pytest.mark.parametrize("notify", ["on", "off"])
def test_another_process_wakes_a_waiting_taker(url: str, notify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{url}&notify={notify}"
    if notify == "on":
        monkeypatch.setattr("penstock.runtime.heartbeat.SCAN_SECONDS", 600.0)
    with penstock.connect(url) as broker:
        tube = broker.tube("work")
        waiting = begin(lambda: tube.take(60))
        until(lambda: any(session.waits for session in broker.sessions()))
        time.sleep(0.3)  # past the take that follows a registration
        _put_in_another_process(url)
        assert waiting.result(30) is not None


def _put_in_another_process(url: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            with penstock.connect(url) as broker:
                broker.tube("work").put("x")
            os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def test_a_burst_of_puts_notifies_seldom(broker: penstock.Broker, url: str, admin: psycopg.Connection) -> None:
    tube = broker.tube("work")
    admin.execute(f"LISTEN {locate(url).channel}")
    waiting = f"INSERT INTO {schema_of(url)}.penstock_waiter VALUES ({tube.stored.no}, 'h', 1, 'another process')"
    admin.execute(waiting)
    began = time.monotonic()
    for _ in range(200):
        tube.put("x")
    lasted = time.monotonic() - began
    notifications = [*admin.notifies(timeout=30, stop_after=1), *admin.notifies(timeout=0.2)]
    assert 1 <= len(notifications) <= lasted / 0.01 + 1


def test_threads_of_a_broker_share_its_pool(url: str) -> None:
    with penstock.connect(f"{url}&pool_size=3") as broker:
        tube = broker.tube("work")
        tube.put_many(range(300))
        seen: list[object] = []

        def work() -> None:
            while (task := tube.take(0)) is not None:
                seen.append(task.data)
                task.ack()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(300))  # type: ignore[type-var]
        assert broker.check() == []
