"""penstock.testing.eager: every put runs at once in the caller, and nothing is stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import apsw
import pytest

import penstock
from penstock.app.app import App
from penstock.testing import eager

SEEN: list[object] = []


@pytest.fixture
def app(penstock_url: str) -> Iterator[App]:
    SEEN.clear()
    app = penstock.App(penstock_url)
    yield app
    assert app.connection.eager is None
    assert [info.name for info in app.broker.tubes()] == []
    app.close()


def test_a_put_runs_before_it_returns(app: App) -> None:
    @app.task(tube="mail", delay=600)
    def send(to: str, copies: int = 1) -> str:
        SEEN.append((to, threading.current_thread(), penstock.current_task().attempts))
        return f"{copies} to {to}"

    @app.task
    async def fetch(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    with eager(app):
        handle = send.put("ada", copies=2)
        assert [("ada", threading.current_thread(), 1)] == SEEN
        assert (handle.result(0), handle.status) == ("2 to ada", "done")
        soon = datetime.now(UTC) + timedelta(days=1)
        assert send.options(at=soon, utube="x", ttl=1, group="g").put("bob").result(0) == "1 to bob"
        assert [each.result(0) for each in send.put_many(["a", ("b", 2)], delay=5)] == ["1 to a", "2 to b"]
        assert send.call("eve").put().result(0) == "1 to eve"
        assert fetch.put(4).result(0) == 8
        assert app.handler("fetch").put(5).result(0) == 10
        assert app.put("fetch", 6).result(0) == 12
        with eager(app):
            assert fetch.put(1).result(0) == 2
        assert len(app.broker.tube("mail")) == 0
    assert handle.result(0) == "2 to ada"  # also after the block


def test_exceptions_are_raised_and_nothing_is_retried(app: App) -> None:
    @app.task(max_attempts=5)
    def work(what: str) -> None:
        SEEN.append(what)
        if what == "bad":
            raise ValueError("no")
        if what == "retry":
            raise penstock.Retry(5)

    with eager(app):
        with pytest.raises(ValueError, match="no"):
            work.put("bad")
        with pytest.raises(penstock.Retry):
            work.put("retry")
        with pytest.raises(ValueError, match="no"):
            work.put_many(["one", "bad", "two"])
        work.put("good")
        with pytest.raises(penstock.BadValue, match="an argument of work does not fit"):
            work.put(3)  # type: ignore[call-overload]
        with pytest.raises(penstock.NotFound, match="no handler named 'nobody'"):
            app.put("nobody")
        work.put("last")
    assert SEEN == ["bad", "retry", "one", "bad", "good", "last"]


def test_what_a_handler_puts_runs_inside_of_it(app: App) -> None:
    @app.task
    def inner(number: int) -> int:
        SEEN.append(("inner", penstock.current_task().id))
        return number + 1

    @app.task
    async def awaited(number: int) -> int:
        return (await (await inner.aio.put(number)).result(0)) + inner.put(number).result(0)

    @app.task
    def outer(number: int) -> int:
        own = penstock.current_task().id
        result = awaited.put(number).result(0)
        assert penstock.current_task().id == own
        return result

    async def main() -> int:
        return await (await outer.aio.put(1)).result(0)

    with eager(app):
        assert outer.put(1).result(0) == 4
        assert asyncio.run(main()) == 4


def test_chains_and_groups_run_through(app: App) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(tube="other")
    def double(a: int) -> int:
        return 2 * a

    @app.task
    def summary() -> None:
        SEEN.append("summary")

    with eager(app):
        handle = penstock.chain(add.call(1, 2), double.call().options(delay=60), add.call(4)).put()
        assert [each.result(0) for each in handle.handles] == [3, 6, 10]
        with app.group("nightly") as group:
            handles = [group.put(add.call(number, 1)) for number in range(3)]
            group.then(summary.call())
            assert SEEN == []
        assert SEEN == ["summary"]
        assert (group.status, [each.result(0) for each in handles]) == ("done", [1, 2, 3])
        with pytest.raises(penstock.Bury, match="does not fit"):
            penstock.chain(add.call(1, 2), app.handler("double", tube="other").call(1)).put()


def test_after_an_error_the_rest_of_a_large_group_does_not_run(app: App) -> None:
    @app.task
    def note(number: int) -> None:
        SEEN.append(number)
        if number < 0:
            raise ValueError(number)

    with eager(app):
        with pytest.raises(ValueError, match="-1"), app.group("many") as group:
            group.put_many([note.call(number) for number in (-1, *range(150))])
        note.put(7)
    assert SEEN == [-1, 7]


def test_hooks_run_and_the_store_is_restored(app: App) -> None:
    @app.task
    def work() -> None:
        SEEN.append("work")

    @app.around
    def around(task: penstock.Task) -> Iterator[None]:
        SEEN.append("around")
        yield

    with pytest.raises(KeyError), eager(app):
        work.put()
        raise KeyError
    assert SEEN == ["around", "work"]
    work.put()
    assert (SEEN, len(app.broker.tube("default"))) == (["around", "work"], 1)
    app.broker.tube("default").truncate()
    app.broker.tube("default").drop()


def test_the_task_of_a_transaction_is_done_and_the_callers_rows_are_committed(app: App) -> None:
    @app.task
    def note(text: str) -> str:
        return text

    @app.task
    def ship(text: str) -> str:
        with penstock.current_task().transaction(db, result="shipped"):
            db.execute("INSERT INTO rows VALUES (?)", (text,))
            SEEN.append(note.bind(db).put(text).result(0))
        return "ignored"

    with closing(apsw.Connection(":memory:")) as db, eager(app):
        db.execute("CREATE TABLE rows (text TEXT)")
        assert ship.put("a").result(0) == "shipped"
        assert (list(db.execute("SELECT text FROM rows")), db.in_transaction) == ([("a",)], False)
    assert SEEN == ["a"]
