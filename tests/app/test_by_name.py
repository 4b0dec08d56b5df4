"""Handlers by name: put without importing the function, bound by the worker that has it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import run_queued
from tests.app.sample_types import Point


@pytest.fixture
def apps(store_url: str) -> Iterator[tuple[App, App]]:
    """An app that knows only the names, and one that has the functions."""
    web, worker = penstock.App(store_url), penstock.App(store_url)

    @worker.task(tube="mail", max_attempts=3)
    def send(to: str, copies: int = 1, *, subject: str = "hi") -> str:
        return f"{copies} to {to}: {subject}"

    @worker.task
    def add(*numbers: int) -> int:
        return sum(numbers)

    @worker.task
    def move(point: Point, by: int) -> Point:
        return Point(point.x + by, point.y + by)

    yield web, worker
    web.close()
    worker.close()


def test_a_name_identifies_a_handler(apps: tuple[App, App]) -> None:
    web, worker = apps
    send = web.handler("send", tube="mail")
    handles: list[Any] = [
        send.put("ada"), send.put("ada", 2, subject="hello"), send.put(to="bob"), send.options(pri=1).put("eve"),
        send.put("joe", pri=2), *send.put_many(["a", ("b", 2), {"to": "c"}, (("d",), {"subject": "x"})], pri=3),
        send.call("zoe").options(pri=4).put(), asyncio.run(send.aio.put("amy", copies=4)),
    ]  # fmt: skip
    data = [task.data for task in web.broker.tube("mail").tasks()]
    assert data[:3] == [
        {"task": "send", "args": ["ada"]},
        {"task": "send", "args": ["ada", 2], "kwargs": {"subject": "hello"}},
        {"task": "send", "args": {"to": "bob"}},
    ]
    assert [task.pri for task in web.broker.tube("mail").tasks()] == [0, 0, 0, 1, 2, 3, 3, 3, 3, 4, 0]
    run_queued(worker)
    results = [send.handle(handle.id).result(0) for handle in handles]
    assert results == [
        "1 to ada: hi", "2 to ada: hello", "1 to bob: hi", "1 to eve: hi", "1 to joe: hi", "1 to a: hi", "2 to b: hi",
        "1 to c: hi", "1 to d: x", "1 to zoe: hi", "4 to amy: hi",
    ]  # fmt: skip


def test_put_of_an_app_is_short_for_put_of_a_handler_by_name(apps: tuple[App, App]) -> None:
    web, worker = apps
    handle, other = web.put("add", 1, 2, 3), web.put("add")
    assert [task.data for task in web.broker.tube("default").tasks()] == [
        {"task": "add", "args": [1, 2, 3]},
        {"task": "add", "args": {}},
    ]
    run_queued(worker)
    assert (handle.result(0), other.result(0)) == (6, 0)
    web.put("book", name="ada", delay=3, tube="x")  # every keyword is an argument
    [task] = web.broker.tube("default").tasks()
    assert (task.status, task.data) == ("r", {"task": "book", "args": {"name": "ada", "delay": 3, "tube": "x"}})


def test_values_are_read_by_the_annotations_of_the_worker(apps: tuple[App, App]) -> None:
    web, worker = apps
    move = web.handler("move")
    handles = [move.put(Point(1, 2), 3), move.put({"x": 1}, by=1), move.put(point=Point(5), by=0)]
    run_queued(worker)
    assert [handle.result(0) for handle in handles] == [{"x": 4, "y": 5}, {"x": 2, "y": 1}, {"x": 5, "y": 0}]
    with pytest.raises(penstock.BadValue, match="move.put"):
        move.put(object(), 1)


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((1,), {}, "Expected `str`, got `int`"),
        ((), {}, "missing a required argument: 'to'|missing required field `to`"),
        (("ada", 1, 2), {}, "too many positional arguments"),
        (("ada",), {"nope": 1}, "unexpected keyword argument 'nope'"),
        ((), {"nope": 1}, "nope|missing required field `to`"),
        (("ada",), {"to": "bob"}, "multiple values for argument 'to'"),
    ],
)
def test_what_does_not_fit_is_buried(
    apps: tuple[App, App], args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    web, worker = apps
    handle = web.handler("send", tube="mail").put(*args, **kwargs)
    run_queued(worker)
    found = web.broker.tube("mail").peek(handle.id)
    assert (found.status, found.attempts) == ("!", 1)
    assert re.search(reason, found.reason or "")
    assert (found.reason or "").startswith("BadValue: ")


def test_kwargs_that_are_none_are_buried(apps: tuple[App, App]) -> None:
    web, worker = apps
    tube = web.broker.tube("mail")
    for args, kwargs in (("ada", {}), (["ada"], 5), ({"to": "ada"}, {"copies": 2}), (None, None)):
        tube.put({"task": "send", "args": args, "kwargs": kwargs})
    run_queued(worker)
    assert [task.status for task in tube.tasks()] == ["!"] * 4


def test_the_options_of_the_workers_handler_apply(apps: tuple[App, App]) -> None:
    web, worker = apps

    @worker.task(tube="mail", max_attempts=1)
    def broken() -> None:
        raise ValueError

    handle = web.handler("broken", tube="mail").put()
    run_queued(worker, raises=False)
    assert web.broker.tube("mail").peek(handle.id).status == "!"


@pytest.mark.parametrize("store_url", ["memory", "sqlite", "postgres", "redis"], indirect=True)
def test_a_handler_by_name_can_be_a_link_of_a_chain(apps: tuple[App, App]) -> None:
    web, worker = apps
    add, send = web.handler("add"), web.handler("send", tube="mail")
    handle = penstock.chain(add.call(1, 2), add.call(4), send.call(subject="x").options(pri=1)).put()
    run_queued(worker)
    assert handle.status == "buried"  # 7 is not text
    last = penstock.chain(add.call(1, 2), add.call(4), add.call(9).without_result()).put()
    run_queued(worker)
    assert [each.result(0) for each in last.handles] == [3, 7, 9]


def test_a_handler_known_only_by_name_cannot_be_called(apps: tuple[App, App]) -> None:
    web, _ = apps
    send = web.handler("send", tube="mail")
    assert repr(send) == "<Handler send of tube mail>"
    with pytest.raises(penstock.BadValue, match="has no function here"):
        send("ada")
    for bad in ("no way", "", 5, None):
        with pytest.raises(penstock.BadValue, match="task name"):
            web.handler(bad)  # type: ignore[arg-type]
        with pytest.raises(penstock.BadValue, match="tube"):
            web.handler("send", tube=bad or "")  # type: ignore[arg-type]
    with pytest.raises(penstock.BadValue, match="not a put option"):
        send.options(copies=2)  # type: ignore[call-arg]
