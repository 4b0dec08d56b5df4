"""A handler call as a value: created now, put later, alone or after another call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import run_queued
from tests.app.sample_types import Point


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    app = penstock.App(store_url)
    yield app
    app.close()


def test_a_call_is_put_as_the_handler_puts_it(app: App) -> None:
    @app.task(tube="mail", pri=7)
    def send(to: str, copies: int = 1) -> str:
        return f"{copies} to {to}"

    call = send.call("ada", copies=2)
    assert [tube.name for tube in app.broker.tubes()] == []
    handle = call.put()
    call.put()  # a value: it may be put again
    one, two = app.broker.tube("mail").tasks()
    assert (one.data, one.pri) == (two.data, two.pri) == ({"task": "send", "args": {"to": "ada", "copies": 2}}, 7)
    run_queued(app)
    assert handle.result(0) == "2 to ada"


def test_options_make_another_call(app: App) -> None:
    @app.task(tube="mail")
    def send(to: str) -> None: ...

    call = send.call("ada")
    later = call.options(delay=60, pri=1).options(pri=2)
    assert (call.put_options, later.put_options) == ({}, {"delay": 60, "pri": 2})
    assert send.options(delay=5).call("ada") == send.call("ada").options(delay=5)
    call.put()
    later.put()
    assert [(task.status, task.pri) for task in app.broker.tube("mail").tasks()] == [("r", 0), ("~", 2)]
    with pytest.raises(penstock.BadValue, match="capacity is not a put option"):
        call.options(capacity=3)  # type: ignore[call-arg]


def test_arguments_are_checked_when_it_is_put(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    for call in (send.call(1), send.call(), send.call("ada", nope=1)):  # type: ignore[call-overload]
        with pytest.raises(penstock.BadValue):
            call.put()
    assert app.broker.tube("default").tasks() == []


def test_a_call_takes_the_previous_result_unless_without_result(app: App) -> None:
    @app.task
    def move(point: Point, by: int = 1) -> None: ...

    @app.task
    def add(*numbers: int) -> int:
        return sum(numbers)

    tube = app.connection.tube("default")
    assert move.call(by=3).takes_result
    assert move.call(by=3).item(tube, Point(1, 2))[0] == {"task": "move", "args": {"point": {"x": 1, "y": 2}, "by": 3}}
    assert move.call(by=3).item(tube, {"x": 1})[0] == {"task": "move", "args": {"point": {"x": 1}, "by": 3}}
    assert add.call(2, 3).item(tube, 1)[0] == {"task": "add", "args": {"numbers": [1, 2, 3]}}
    alone = move.call(Point(4)).without_result()
    assert not alone.takes_result
    assert alone.item(tube, "dropped")[0] == {"task": "move", "args": {"point": {"x": 4, "y": 0}}}
    with pytest.raises(penstock.BadValue, match="point"):
        move.call(by=3).item(tube, "no point")


def test_a_pending_call_is_checked_except_for_its_first_argument(app: App) -> None:
    @app.task
    def move(point: Point, by: int = 1) -> None: ...

    @app.task
    def add(*numbers: int) -> int:
        return sum(numbers)

    @app.task
    def nothing(*, by: int = 1) -> None: ...

    tube = app.connection.tube("default")
    data, options = move.call(by=3).options(pri=2).pending_item(tube)
    assert (data, options["pri"]) == ({"task": "move", "args": {"by": 3}}, 2)
    assert add.call(2, 3).pending_item(tube)[0]["args"] == {"numbers": [2, 3]}
    assert (move.arguments.first_place(), add.arguments.first_place()) == ("point", "*numbers")
    for bad in (move.call(by="x"), move.call(1, 2, 3), move.call(point=Point(1)), nothing.call(by=2)):  # type: ignore[call-overload]
        with pytest.raises(penstock.BadValue):
            bad.pending_item(tube)
    data, _ = nothing.call(by=2).without_result().pending_item(tube)
    assert data == {"task": "nothing", "args": {"by": 2}}


def test_a_call_is_put_in_an_event_loop(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    async def main() -> Any:
        handle = await double.call(4).options(pri=1).aio.put()
        await asyncio.to_thread(run_queued, app)
        return await handle.result(10)

    assert asyncio.run(main()) == 8
