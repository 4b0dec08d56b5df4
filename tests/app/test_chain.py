"""Chains: each link is put, with the result of the link before it, in the step that acks that link."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import run_queued
from tests.conftest import STORES
from tests.support.threads import begin, until


@pytest.fixture(params=STORES)
def chains(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app with handlers in two tubes."""
    app = penstock.App(STORES[request.param](tmp_path))
    define(app)
    yield app
    app.close()


def put_chain(*calls: Any) -> Any:
    return penstock.chain(*calls).put()


def define(app: App) -> None:
    @app.task(tube="one", name="add")
    def add(a: int, b: int = 10) -> int:
        return a + b

    @app.task(tube="two", name="double")
    def double(a: int) -> int:
        return 2 * a

    @app.task(tube="one", name="nothing")
    def nothing(value: int) -> None: ...

    @app.task(tube="one", name="show")
    def show(*values: Any, last: str = "") -> str:
        return f"{values}{last}"

    @app.task(tube="two", name="count")
    def count(data: bytes) -> int:
        return len(data)

    @app.task(tube="one", name="raw")
    def raw(size: int) -> bytes:
        return b"\0" * size

    @app.task(tube="two", name="broken", max_attempts=1)
    def broken(a: int) -> int:
        raise ValueError(f"no {a}")


def test_a_sharded_tube_refuses_chains(tmp_path: Path) -> None:
    app = penstock.App(STORES["redis-cluster"](tmp_path))
    define(app)
    app.broker.create_tube("two", "fifottl", shards=2)
    with pytest.raises(penstock.UnsupportedOption, match="chains"):
        put_chain(app.handlers["add"].call(1), app.handlers["double"].call())
    assert [len(app.broker.tube(name)) for name in ("one", "two")] == [0, 0]
    app.close()


def test_each_link_gets_the_result_before_it(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(
        handler["add"].call(1), handler["double"].call(), handler["add"].call(b=5), handler["show"].call(last="!")
    )
    assert [handle.status for handle in last.handles] == ["ready", "pending", "pending", "pending"]
    assert (last.id, last.outcome) == (None, None)
    assert run_queued(chains) == 4
    assert [handle.result(5) for handle in last.handles] == [11, 22, 27, "(27,)!"]
    assert [handle.status for handle in last.handles] == ["done"] * 4


def test_a_link_has_its_id_from_its_put_until_its_outcome_is_forgotten(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["add"].call(1), handler["broken"].call(), handler["add"].call())
    first, middle, _ = last.handles
    id = first.id
    assert (id is None, middle.id, last.id) == (False, None, None)
    run_queued(chains, raises=False)
    assert (first.status, first.id) == ("done", id)
    buried = middle.id
    assert (middle.status, buried is None) == ("buried", False)
    assert middle.cancel()
    assert (middle.status, middle.id) == ("cancelled", buried)
    assert (last.status, last.id) == ("failed", None)  # it was never put


def test_a_link_may_omit_the_result_and_none_is_passed_on(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["nothing"].call(1), handler["show"].call("a"), handler["double"].call(4).without_result())
    run_queued(chains)
    assert [handle.result(5) for handle in last.handles[1:]] == ["(None, 'a')", 8]


def test_bytes_are_passed_on(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["raw"].call(300), handler["count"].call())
    run_queued(chains)
    assert last.result(5) == 300


def test_a_link_is_put_even_into_a_full_tube(chains: App) -> None:
    two = chains.broker.tube("two", capacity=1)
    two.put("x")
    last = put_chain(chains.handlers["add"].call(1), chains.handlers["double"].call())
    run_queued(chains, raises=False)
    assert last.result(5) == 22
    with pytest.raises(penstock.TubeFull):
        two.put("y")


def test_a_raw_ack_continues_the_chain(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["add"].call(1), handler["double"].call().options(pri=3, reply_to="answers"))
    one, two = chains.broker.tube("one"), chains.broker.tube("two")
    task = one.take(0)
    assert task is not None
    one.ack(task, 7)
    follower = two.take(5)
    assert follower is not None
    assert (follower.address, follower.pri, follower.data) == (last.address, 3, {"task": "double", "args": {"a": 7}})
    assert last.id == follower.id
    found: Any = handler["double"].handle(address=last.address)
    assert found.status == "taken"
    assert two.take(0) is None
    two.ack(follower, 14)
    reply = chains.broker.tube("answers").take(5)
    assert reply is not None
    assert (reply.data["status"], reply.data["result"]) == ("done", 14)


def test_a_link_that_does_not_end_well_fails_what_follows_until_it_is_kicked(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["add"].call(1), handler["broken"].call(), handler["add"].call())
    run_queued(chains, raises=False)
    first, middle, _ = last.handles
    assert (first.status, middle.status, last.status) == ("done", "buried", "failed")
    assert "ValueError: no 11" in last.outcome.error
    assert last.wait(0).status == "failed"
    with pytest.raises(penstock.TaskFailed, match="no 11"):
        middle.wait(0)
    chains.broker.tube("two").kick()
    assert (middle.status, last.status, last.outcome) == ("ready", "pending", None)
    task = chains.broker.tube("two").take(0)
    assert task is not None
    task.fail("given up", code=7)
    assert (last.outcome.status, last.outcome.error, last.outcome.code) == ("failed", "given up", 7)


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_link_that_is_removed_fails_what_follows(chains: App, end: str) -> None:
    handler = chains.handlers
    last = put_chain(handler["add"].call(1), handler["double"].call())
    first = last.handles[0]
    if end == "cancel":
        assert first.cancel("not needed")
        assert (first.status, last.outcome.error) == ("cancelled", "not needed")
    else:
        chains.broker.tube("one").delete(first.id)
        assert first.status == "deleted"
    assert last.status == "failed"
    assert run_queued(chains) == 0
    assert not first.cancel()


def test_cancel_of_a_pending_link_ends_the_chain_there(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["add"].call(1), handler["double"].call(), handler["add"].call())
    first, middle, _ = last.handles
    assert middle.cancel("enough")
    assert (first.status, middle.status, last.status) == ("ready", "cancelled", "failed")
    assert run_queued(chains) == 1
    assert (first.status, middle.status, last.status) == ("done", "cancelled", "failed")
    assert (middle.outcome.error, last.outcome.error) == ("enough", "enough")
    assert not middle.cancel()
    assert chains.broker.tube("two").stats().tasks.total == 0


def test_wait_sleeps_until_the_last_link_is_done(chains: App) -> None:
    handler = chains.handlers
    last = put_chain(handler["add"].call(1), handler["double"].call())
    with pytest.raises(TimeoutError):
        last.wait(0.05)
    waited: list[Any] = []
    waiter = threading.Thread(target=lambda: waited.append(last.result(20)))
    waiter.start()
    run_queued(chains)
    waiter.join(20)
    assert waited == [22]


def test_cancel_of_a_pending_link_ends_the_waits_for_it_and_for_later_links(chains: App) -> None:
    handler = chains.handlers
    later = handler["add"].options(delay=60).call(1)
    last = put_chain(later, handler["double"].call(), handler["add"].call())
    middle = last.handles[1]
    waits = [begin(partial(handle.wait, 20)) for handle in (middle, last)]
    until(lambda: sum(map(len, chains.broker.runtime.wait_queue.topics.values())) == 2)
    assert middle.cancel("enough")
    assert [(wait.result(10).status, wait.result(10).error) for wait in waits] == [
        ("cancelled", "enough"),
        ("failed", "enough"),
    ]


def test_what_cannot_be_put_is_refused_and_nothing_is_stored(chains: App) -> None:
    handler = chains.handlers
    add, double = handler["add"], handler["double"]
    for bad in (
        lambda: penstock.chain(),
        lambda: penstock.chain(add.call(1), double.call(2)).put(),
        lambda: penstock.chain(add.call("x"), double.call()).put(),
        lambda: penstock.chain(add.call(1), double.call().options(address="mine")).put(),
        lambda: penstock.chain(add.call(1), double.call().options(delay=-1)).put(),
        lambda: add.handle(),
    ):
        with pytest.raises(penstock.BadValue):
            bad()
    assert sum(len(chains.broker.tube(tube.name)) for tube in chains.broker.tubes()) == 0
    unknown: Any = add.handle(address="chain:nothing.2")
    assert unknown.status == "unknown"
    with pytest.raises(penstock.NotFound, match=r"address chain:nothing\.2 of tube \w+ has no task and no outcome"):
        unknown.wait(0)


def test_a_link_is_put_for_a_time(chains: App) -> None:
    add, double = chains.handlers["add"], chains.handlers["double"]
    past, soon = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(seconds=60)
    handle = put_chain(add.call(1).options(at=past), double.call().options(at=soon))
    run_queued(chains)
    [task] = chains.broker.tube("two").tasks()
    assert task.status == "~"
    assert task.due == pytest.approx(soon.timestamp(), abs=1)
    assert handle.status == "delayed"
    with pytest.raises(penstock.BadValue, match="at and delay"):
        put_chain(add.call(1), double.call().options(at=soon, delay=1))
