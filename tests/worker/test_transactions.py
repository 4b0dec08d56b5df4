"""Rows, puts and the ack of the handled task in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.core.task import record_of
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import transaction_app


@pytest.fixture
def shop(url: str) -> Iterator[App]:
    transaction_app.app.connection.use(url)
    transaction_app.app.broker.tube("notes")
    with transaction_app.database() as db:
        db.execute("CREATE TABLE rows (text TEXT)")
    yield transaction_app.app
    assert transaction_app.app.broker.check() == []
    transaction_app.app.close()


@pytest.fixture
def worker(shop: App) -> Iterator[Worker]:
    worker = Worker(shop, Settings(tubes=("work",), concurrency=2, processes=1))
    worker.start()
    yield worker
    worker.stop()


def rows() -> list[str]:
    with transaction_app.database() as db:
        return [text for (text,) in db.execute("SELECT text FROM rows")]


HANDLERS: dict[str, Any] = {
    "thread": transaction_app.in_thread, "loop": transaction_app.in_loop, "process": transaction_app.in_process,
}  # fmt: skip


@pytest.mark.parametrize("where", HANDLERS)
def test_rows_puts_and_the_ack_are_one_commit(shop: App, worker: Worker, where: str) -> None:
    handle = HANDLERS[where].put("a")
    assert handle.result(PATIENCE) == "kept a"
    assert rows() == ["a 1"]
    assert [task.data for task in shop.broker.tube("notes").tasks()] == [{"task": "note", "args": {"text": "a"}}]
    until(lambda: not worker.state.in_flight.held)
    assert len(shop.broker.tube("work")) == 0


@pytest.mark.parametrize("where", HANDLERS)
def test_an_exception_rolls_back_and_the_task_is_retried(shop: App, worker: Worker, where: str) -> None:
    assert HANDLERS[where].put("a", "raise").result(PATIENCE) == "kept a"
    assert rows() == ["a 2"]
    assert len(shop.broker.tube("notes")) == 1


def test_in_an_open_transaction_the_caller_commits(shop: App, worker: Worker) -> None:
    assert transaction_app.in_thread.put("a", "outer").result(PATIENCE) == "kept a"
    assert rows() == ["a 2"]  # the first attempt was rolled back after the block
    assert len(shop.broker.tube("notes")) == 1


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_task_whose_transaction_the_caller_rolled_back_is_retried(shop: App, worker: Worker, where: str) -> None:
    handle = HANDLERS[where].put("a", "forgotten")
    assert handle.result(PATIENCE) == "kept a"
    assert rows() == ["a 2"]
    [error] = handle.outcome.errors
    assert error.error == "the transaction that acked it was not committed"


def test_a_lost_lease_rolls_back(shop: App) -> None:
    tube = shop.broker.tube("work")
    handle = transaction_app.in_thread.put("a")
    task = tube.take(0)
    assert task is not None
    current = penstock.app.current.CurrentTask(record_of(task), tube, task.data)
    tube.release_all()
    with transaction_app.database() as db:
        with pytest.raises(penstock.NotTaken, match="rolled back"), current.transaction(db):
            db.execute("INSERT INTO rows VALUES ('lost')")
        assert not db.in_transaction
        with pytest.raises(penstock.UnsupportedOption, match="psycopg, apsw, pymysql"), current.transaction(object()):
            pass
    assert (rows(), handle.status, current.status) == ([], "ready", "t")


def test_hooks_run_for_bound_puts(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ids: list[list[object]] = []
    monkeypatch.setattr(shop.hooks, "put", [lambda handles: put_ids.append([handle.id for handle in handles])])
    with transaction_app.database() as db:
        db.execute("BEGIN IMMEDIATE")
        handle = transaction_app.note.bind(db).put("a")
        assert put_ids == [[handle.id]]
        db.execute("COMMIT")


def test_a_bound_put_is_gone_at_a_rollback(shop: App) -> None:
    with transaction_app.database() as db:
        db.execute("BEGIN IMMEDIATE")
        gone = transaction_app.note.bind(db).put("gone")
        assert len(transaction_app.note.bind(db).put_many(["x", ("y",)], pri=2)) == 2
        db.execute("ROLLBACK")
        db.execute("BEGIN IMMEDIATE")
        handle = transaction_app.note.bind(db).options(delay=60).put("kept")
        db.execute("COMMIT")
    assert handle.status == "delayed"
    assert gone.id == handle.id  # the first was never stored
    assert len(shop.broker.tube("notes")) == 1
