"""broker.bind: verbs inside a psycopg transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import penstock
from penstock.app.current import CurrentTask
from penstock.core.task import record_of
from penstock.runtime import heartbeat as heartbeat
from penstock.store.postgres.postgres_connection import locate
from penstock.testing import Clock, run_queued
from tests.servers.postgres import Postgres
from tests.support.threads import begin, until
from tests.support.verbs import take


def test_a_put_is_seen_at_the_commit(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("work")
    with psycopg.connect(locate(url).conninfo) as db:
        broker.bind(db).tube("work").put("x")
        assert tube.take(0) is None
        db.commit()
        task = tube.take(0)
    assert task is not None
    assert task.data == "x"
    assert tube.stats().calls.put == 1


def test_a_commit_wakes_waiters_in_this_process(
    broker: penstock.Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SCAN_SECONDS", 600.0)
    tube = broker.tube("work")
    tube.put("addressed", address="a")
    held = take(tube)
    taking, waiting = begin(lambda: tube.take(60)), begin(lambda: tube.wait("a", 60))
    until(lambda: len(broker.runtime.wait_queue.topics) == 2 and any(session.waits for session in broker.sessions()))
    time.sleep(0.3)  # past the take that follows a registration
    with psycopg.connect(locate(url).conninfo) as db:
        bound = broker.bind(db).tube("work")
        bound.ack(held)
        bound.put("x")
    assert waiting.result(30).status == "done"
    assert taking.result(30) is not None


def test_a_rollback_takes_back_puts_acks_and_tubes(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("work")
    tube.put("held")
    task = tube.take(0)
    assert task is not None
    with psycopg.connect(locate(url).conninfo) as db:
        bound = broker.bind(db)
        bound.tube("work").put_many(["x", "y"])
        bound.tube("work").ack(task)
        bound.tube("new").put("z")
        db.rollback()
    assert tube.stats().tasks.total == 1
    assert [info.name for info in broker.tubes()] == ["work"]
    task.ack()
    assert broker.check() == []


def test_a_refused_verb_leaves_the_transaction_as_it_was(broker: penstock.Broker, url: str) -> None:
    with psycopg.connect(locate(url).conninfo) as db:
        bound = broker.bind(db).tube("work", capacity=1)
        bound.put("x")
        with pytest.raises(penstock.TubeFull):
            bound.put("y")
        with pytest.raises(penstock.NotTaken):
            bound.ack(99)
    assert broker.tube("work").stats().tasks.total == 1


def test_addresses_and_groups_are_part_of_the_transaction(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("mail")
    with psycopg.connect(locate(url).conninfo) as db:
        for end in (db.rollback, db.commit):
            bound = broker.bind(db).tube("mail")
            bound.put("x", address="a", reply_to="replies")
            with pytest.raises(penstock.DuplicateAddress):
                bound.put("y", address="a")
            group = bound.group("g")
            group.put("y")
            group.on_end("end")
            group.start()
            assert group.progress() == penstock.Progress(0, 1)
            with pytest.raises(penstock.UnsupportedOption, match="commit"):
                group.wait(0)
            end()
            assert len(tube) == (2 if end == db.commit else 0)
        task = tube.take(0)
        assert task is not None
        broker.bind(db).tube("mail").ack(task, "result")
        with pytest.raises(TimeoutError):
            tube.wait("a", 0)
        db.commit()
    assert tube.wait("a", 0).result == "result"
    assert len(broker.tube("replies")) == 1
    assert broker.check() == []


def test_a_group_that_another_transaction_locks_blocks_no_taker(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("mail")
    group = tube.group("g")
    group.put_many(range(3_000))
    group.start()
    held = tube.take(0)  # some of the group must still follow its start
    assert held is not None
    with psycopg.connect(locate(url).conninfo) as db:
        broker.bind(db).tube("mail").ack(held)
        others = [tube.take(0) for _ in range(3)]
        assert [other and other.data for other in others] == [1, 2, 3]
        db.rollback()
    held.ack()
    assert len(tube) == 2_999


def test_a_lapsed_task_that_another_transaction_locks_blocks_no_taker(url: str) -> None:
    clock = Clock()
    with penstock.connect(url, clock=clock) as broker, psycopg.connect(locate(url).conninfo) as db:
        tube = broker.tube("mail")
        tube.put("x", ttr=5)
        broker.bind(db).tube("mail").ack(take(tube))
        clock.advance(5)
        assert tube.take(0) is None
        db.commit()
        assert len(tube) == 0


def test_an_autocommit_connection_needs_a_transaction(broker: penstock.Broker, url: str) -> None:
    with psycopg.connect(locate(url).conninfo, autocommit=True) as db:
        with pytest.raises(penstock.BadValue, match="no transaction"):
            broker.bind(db)
        with db.transaction():
            broker.bind(db).tube("work").put("x")
    assert broker.tube("work").stats().tasks.total == 1


def test_other_connections_are_refused(broker: penstock.Broker, server: Postgres) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="psycopg"):
        broker.bind(object())
    with psycopg.connect(server.url.replace("/postgres", "/template1")) as db, pytest.raises(penstock.BadValue):
        broker.bind(db)


def test_the_callers_cursor_and_row_types_do_not_matter(broker: penstock.Broker, url: str) -> None:
    conninfo = locate(url).conninfo
    with psycopg.connect(conninfo, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as db:
        broker.bind(db).tube("work").put({"any": "thing"})
    task = broker.tube("work").take(0)
    assert task is not None
    assert task.data == {"any": "thing"}


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_the_rows_puts_and_ack_of_a_handler_are_one_commit(url: str, autocommit: bool, awaited: bool) -> None:
    app, conninfo = penstock.App(url), locate(url).conninfo

    @app.task
    def note(text: str) -> None: ...

    @app.task(tube="work")
    def plain(fail: bool) -> str:
        with (
            psycopg.connect(conninfo, autocommit=autocommit) as db,
            penstock.current_task().transaction(db, result="kept"),
        ):
            db.execute("INSERT INTO rows VALUES (1)")
            note.bind(db).put("x")
            if fail:
                raise ValueError("no")
        return "ignored"

    @app.task(tube="work")
    async def coroutine(fail: bool) -> str:
        async with (
            await psycopg.AsyncConnection.connect(conninfo, autocommit=autocommit) as db,
            penstock.current_task().transaction(db, result="kept"),
        ):
            await db.execute("INSERT INTO rows VALUES (1)")
            note.bind(db).put("x")
            if fail:
                raise ValueError("no")
        return "ignored"

    handler: Any = coroutine if awaited else plain
    with psycopg.connect(conninfo, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS rows")
        db.execute("CREATE TABLE rows (number INTEGER)")
        good, bad = handler.put(False), handler.put(True)
        run_queued(app, raises=False)
        assert (good.result(0), bad.status) == ("kept", "delayed")
        assert db.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    assert app.broker.tube("default").stats().calls.put == 1
    assert app.broker.check() == []
    app.close()


def test_a_transaction_of_a_lost_lease_is_rolled_back(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("work")
    tube.put("x")
    task = take(tube)
    current = CurrentTask(record_of(task), tube, task.data)
    tube.release_all()
    with psycopg.connect(locate(url).conninfo) as db:
        db.execute("DROP TABLE IF EXISTS rows")
        db.execute("CREATE TABLE rows (number INTEGER)")
        db.commit()
        with pytest.raises(penstock.NotTaken), current.transaction(db):
            db.execute("INSERT INTO rows VALUES (1)")
        assert db.execute("SELECT count(*) FROM rows").fetchone() == (0,)


@pytest.fixture
def engine(url: str) -> Iterator[sqlalchemy.Engine]:
    with psycopg.connect(locate(url).conninfo, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS rows")
        db.execute("CREATE TABLE rows (number INTEGER)")
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(locate(url).conninfo))
    yield engine
    engine.dispose()


INSERT, COUNT = sqlalchemy.text("INSERT INTO rows VALUES (1)"), sqlalchemy.text("SELECT count(*) FROM rows")


@pytest.mark.parametrize("made", [sqlalchemy.Connection, Session])
def test_sqlalchemy_s_connection_and_session_are_bound(
    broker: penstock.Broker, engine: sqlalchemy.Engine, made: type[Any]
) -> None:
    tube = broker.tube("work")
    with made(engine) as db:
        for word, end in (("lost", db.rollback), ("kept", db.commit)):
            broker.bind(db).tube("work").put(word)
            db.execute(INSERT)
            end()
        assert db.execute(COUNT).scalar() == 1
    assert [task.data for task in tube.take_many(9)] == ["kept"]


@pytest.mark.parametrize("made", [sqlalchemy.Connection, Session])
@pytest.mark.parametrize("begun", [False, True])
def test_a_transaction_of_sqlalchemy(url: str, engine: sqlalchemy.Engine, made: type[Any], begun: bool) -> None:
    app = penstock.App(url)

    @app.task(backoff=penstock.Backoff(base=600, jitter=0))
    def handler(fails: str) -> str:
        with made(engine) as db:
            if begun:
                db.begin()
            with penstock.current_task().transaction(db, result="kept"):
                db.execute(INSERT)
                if fails == "inside":
                    raise ValueError(fails)
            if fails == "after it":
                raise ValueError(fails)
            if begun:
                db.commit()
        return "ignored"

    handles = [handler.put(fails) for fails in ("", "inside", "after it")]
    run_queued(app, raises=False)
    after = "delayed" if begun else "done"  # the caller did not commit the open one
    assert [handle.status for handle in handles] == ["done", "delayed", after]
    assert handles[0].result(0) == "kept"
    with engine.connect() as db:
        assert db.execute(COUNT).scalar() == (1 if begun else 2)
    assert app.broker.check() == []
    app.close()


def test_unflushed_changes_of_a_session_are_part_of_the_transaction(broker: penstock.Broker, url: str) -> None:
    class Base(DeclarativeBase):
        pass

    class Row(Base):
        __tablename__ = "mapped_rows"
        number: Mapped[int] = mapped_column(primary_key=True)

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(locate(url).conninfo))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    tube = broker.tube("work")
    tube.put("x")
    task = take(tube)
    with Session(engine) as db:
        with CurrentTask(record_of(task), tube, task.data).transaction(db):
            db.add(Row(number=7))
        assert not db.in_transaction()
    with Session(engine) as db:
        assert db.scalars(sqlalchemy.select(Row.number)).all() == [7]
    engine.dispose()
    assert tube.stats().tasks.total == 0


def test_objects_that_only_resemble_sqlalchemy_connections_are_refused(
    broker: penstock.Broker, engine: sqlalchemy.Engine
) -> None:
    tube = broker.tube("work")
    tube.put("x")
    task = take(tube)
    for refused in (engine, AsyncSession()):
        with pytest.raises(penstock.UnsupportedOption, match="AsyncConnection"):
            broker.bind(refused)
    with pytest.raises(penstock.UnsupportedOption, match="SQLAlchemy"):
        CurrentTask(record_of(task), tube, task.data).transaction(engine).__enter__()


def test_a_transaction_of_an_async_connection_of_sqlalchemy(url: str, engine: sqlalchemy.Engine) -> None:
    app = penstock.App(url)

    @app.task(backoff=penstock.Backoff(base=600, jitter=0))
    async def handler(fails: str) -> str:
        connect = partial(psycopg.AsyncConnection.connect, locate(url).conninfo)
        other = create_async_engine("postgresql+psycopg_async://", async_creator=connect)
        try:
            async with other.connect() as db, penstock.current_task().transaction(db, result="kept"):
                await db.execute(INSERT)
                handler.bind(db).options(delay=600).put("later")
                if fails:
                    raise ValueError(fails)
        finally:
            await other.dispose()
        return "ignored"

    handles = [handler.put(fails) for fails in ("", "inside")]
    run_queued(app, raises=False)
    assert [handle.status for handle in handles] == ["done", "delayed"]
    assert app.broker.tube("default").stats().calls.put == 3
    with engine.connect() as db:
        assert db.execute(COUNT).scalar() == 1
    app.close()
