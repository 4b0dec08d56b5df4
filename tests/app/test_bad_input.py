"""Input that an application refuses before it reaches any store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.app.schedules import declared
from penstock.testing import run_queued
from tests.support.inspection import tasks


@pytest.fixture
def app() -> Iterator[App]:
    with penstock.connect("memory://bad-input"):  # keeps the memory store open
        app = penstock.App("memory://bad-input")
        yield app
        app.close()


def send(to: str = "ada", copies: int = 1) -> str:
    return to * copies


@pytest.mark.parametrize("url", [5, True, b"memory://x", ["memory://x"]])
def test_an_app_url_must_be_text(url: Any) -> None:
    with pytest.raises(penstock.BadValue, match="URL"):
        penstock.App(url)


@pytest.mark.parametrize("option", ["name", "tube"])
@pytest.mark.parametrize("value", ["", 0, False, [], "a b", "x" * 201, "\ud800", 5])
def test_a_bad_name_is_refused(app: App, option: str, value: Any) -> None:
    options: Any = {option: value}
    for decorate in (app.task, lambda **options: app.every(5, **options)):
        with pytest.raises(penstock.BadValue, match=option):
            decorate(**options)(send)
    assert (app.handlers, declared(app.schedules)) == ({}, [])


@pytest.mark.parametrize("function", [5, "send", None, type, dict])
def test_a_function_whose_arguments_cannot_be_known_is_refused(app: App, function: Any) -> None:
    with pytest.raises(penstock.BadValue):
        app.task()(function)
    assert app.handlers == {}


def halves(number: int) -> Iterator[int]:
    yield number // 2


async def halves_async(number: int) -> AsyncIterator[int]:
    yield number // 2


@pytest.mark.parametrize("function", [halves, halves_async])
def test_a_generator_function_is_refused(app: App, function: Any) -> None:
    with pytest.raises(penstock.BadValue, match=f"{function.__name__} is a generator function"):
        app.task()(function)
    assert app.handlers == {}


@pytest.mark.parametrize("call", [5, None, "send", send, "the handler"])
def test_what_is_not_a_call_is_refused(app: App, call: Any) -> None:
    handler, group = app.task(send), app.group("g")
    given: Any = handler if call == "the handler" else call
    uses: list[Callable[[], object]] = [
        lambda: penstock.chain(handler.call(), given),
        lambda: group.put(given),
        lambda: group.then(given),
        lambda: app.schedules.set("s", 5, given),
    ]
    for use in uses:
        with pytest.raises(penstock.BadValue, match="is not a call of a handler"):
            use()
    assert tasks(app.broker.tube("default")) == {}


async def awaits(*_: object) -> None: ...


@pytest.mark.parametrize("hook", ["put", "start", "end", "retry", "bury", "startup", "shutdown"])
def test_what_cannot_be_a_hook_is_refused(app: App, hook: str) -> None:
    register: Any = getattr(app, f"on_{hook}")
    refused: list[Any] = [5, None] if hook in ("startup", "shutdown") else [5, None, awaits]
    for callback in refused:
        with pytest.raises(penstock.BadValue, match=f"on_{hook}"):
            register(callback)
    assert register(halves) is halves


BAD_PUTS: dict[str, Callable[[Any], object]] = {
    "put_many of a number": lambda handler: handler.put_many(5),
    "put_many of None": lambda handler: handler.put_many(None),
    "put_many with a bad item": lambda handler: handler.put_many(["ada", ("bob", "many")]),
    "a wrong type": lambda handler: handler.put("ada", copies="many"),
    "one too many": lambda handler: handler.put("ada", 1, 2),
    "an unknown one": lambda handler: handler.put(whom="ada"),
    "a bad option": lambda handler: handler.put("ada", delay=float("nan")),
    "a bad timeout": lambda handler: handler.put("ada", timeout=-1),
    "a handle of a text": lambda handler: handler.handle("1"),
    "a handle of a bool": lambda handler: handler.handle(True),
    "a handle of None": lambda handler: handler.handle(None),
    "an awaited handle of a text": lambda handler: handler.aio.handle("1"),
}


@pytest.mark.parametrize("call", BAD_PUTS.values(), ids=BAD_PUTS)
def test_a_bad_call_stores_nothing(app: App, call: Callable[[Any], object]) -> None:
    handler = app.task(tube="mail")(send)
    with pytest.raises(penstock.BadValue):
        call(handler)
    assert tasks(app.broker.tube("mail")) == {}


def test_none_means_not_given(app: App) -> None:
    nothing: Any = None
    named = app.task(name=nothing, tube=nothing, executor=nothing, backoff=nothing, pri=nothing)(send)
    assert (named.name, named.rules.tube) == ("send", "default")
    app.cron("* * * * *", timezone=nothing, catch_up=nothing, tube=nothing)(named)
    assert declared(app.schedules)[0].plan.text == "cron * * * * * in UTC"


@pytest.mark.parametrize("value", [-0.1, 1.1, 40, float("nan"), float("inf"), "0.4", True, [], object()])
def test_a_progress_outside_0_to_1_is_refused(app: App, value: Any) -> None:
    @app.task
    def report() -> list[float | None]:
        task = penstock.current_task()
        task.progress = 0.5
        with pytest.raises(penstock.BadValue, match=r"progress .* give a share, from 0 to 1"):
            task.progress = value
        reported = [task.progress]
        task.progress = sum([0.01] * 100)  # a little more than 1
        reported.append(task.progress)
        task.progress = None
        return [*reported, task.progress]

    handle = report.put()
    run_queued(app)
    assert handle.result(0) == [0.5, 1.0, None]
