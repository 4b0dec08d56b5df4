"""What `.put` stores of a call, what it refuses and what it returns, on the memory store and SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.app.handler import Handler
from penstock.core.task import record_of
from penstock.testing import run_queued
from tests.app.sample_types import Mail, Point, User


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    app = penstock.App(store_url)
    yield app
    assert app.broker.check() == []
    app.close()


def stored(app: App, tube: str = "default") -> list[object]:
    return [task.data for task in app.broker.tube(tube).tasks()]


def test_a_put_stores_the_name_and_the_arguments_by_name(app: App) -> None:
    @app.task(tube="mail")
    def send(to: str, subject: str = "hi", *, copies: int = 1) -> None: ...

    send.put("ada", "hello", copies=2)
    send.put(to="bob")
    assert stored(app, "mail") == [
        {"task": "send", "args": {"to": "ada", "subject": "hello", "copies": 2}},
        {"task": "send", "args": {"to": "bob"}},
    ]


def test_put_options_are_passed_as_keywords(app: App) -> None:
    @app.task(tube="mail", ttr=30, max_attempts=5)
    def send(to: str) -> None: ...

    send.put("ada", delay=10, pri=3)
    send.options(max_attempts=2).put("bob")
    one, two = app.broker.tube("mail").tasks()
    assert (one.status, one.pri, record_of(one).options.max_attempts, record_of(one).ttr) == ("~", 3, 5, 30_000)
    assert (two.status, two.pri, record_of(two).options.max_attempts, record_of(two).ttr) == ("r", 0, 2, 30_000)


def test_object_accepts_any_value(app: App) -> None:
    ran: list[object] = []

    @app.task
    def keep(value: object, more: list[object]) -> object:
        ran.append([value, more])
        return value

    handle = keep.put({"a": [1]}, [2, "b"])
    run_queued(app)
    assert (ran, handle.result(0)) == ([[{"a": [1]}, [2, "b"]]], {"a": [1]})


def test_an_annotation_that_no_data_can_have_is_refused(app: App) -> None:
    @app.task
    def draw(app: App) -> None: ...

    with pytest.raises(penstock.BadValue, match="annotation App"):
        app.handlers["draw"].put(1)


def test_attempts_have_a_default_limit(app: App) -> None:
    app.broker.tube("own", max_attempts=3)

    @app.task
    def plain() -> None: ...

    @app.task(tube="own")
    def own() -> None: ...

    plain.put()
    own.put()
    assert record_of(app.broker.tube("default").tasks()[0]).options.max_attempts == 20
    assert record_of(app.broker.tube("own").tasks()[0]).options.max_attempts == 3


@pytest.mark.parametrize(
    "rules",
    [{}, {"pri": 3, "ttl": 60, "ttr": 5, "max_attempts": 2, "callback": "https://example.org/"}, {"delay": 99}],
)
def test_a_single_put_stores_what_put_many_does(app: App, rules: dict[str, Any]) -> None:
    put_ids: list[int] = []
    app.on_put(lambda handles: put_ids.extend(handle.id for handle in handles))

    def function(to: str) -> None: ...

    send: Handler[[str], None, None] = app.task(**rules)(function)

    send.put("ada")  # the first one opens the tube
    assert [send.put("ada").id, send.put_many(["ada"])[0].id] == [2, 3]
    records = [record_of(task) for task in app.broker.tube("default").tasks()]
    shown = [{field: getattr(record, field) for field in record.__struct_fields__} for record in records]
    for each in shown:
        moments = {name: each.pop(name) for name in ("created", "expires", "at")}
        each |= {name: at and at - moments["created"] for name, at in moments.items()}
        each["address"] = each["address"] is not None  # random if the task's expiry must be reported
        del each["id"]
    assert shown[0] == shown[1] == shown[2]
    assert put_ids == [1, 2, 3]
    assert app.broker.tube("default").stats().calls.put == 3


def test_items_of_put_many(app: App) -> None:
    @app.task
    def add(a: int, b: int = 0) -> None: ...

    handles = add.put_many([1, (2, 3), {"a": 4, "pri": 7}, ((5,), {"b": 6})], pri=1)
    assert [handle.id for handle in handles] == [1, 2, 3, 4]
    tasks = app.broker.tube("default").tasks()
    assert [(task.data["args"], task.pri) for task in tasks] == [
        ({"a": 1}, 1), ({"a": 2, "b": 3}, 1), ({"a": 4}, 7), ({"a": 5, "b": 6}, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Mail, Mail("ada", ("new",))),
        (Point, Point(1, 2)),
        (User, User(name="ada", age=36)),
        (bytes, b"\0\xff"),
        (list[Mail], [Mail("ada"), Mail("bob")]),
        (dict[int, Point], {1: Point(1)}),
        (tuple[int, ...], (1, 2)),
        (Point | None, None),
        (Any, {"any": ["json", 1, 2.5, None, True]}),
    ],
)
def test_arguments_and_results_come_back_as_annotated(app: App, kind: Any, value: object) -> None:
    seen: list[object] = []

    def echo(value: object) -> object:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    handler = app.task(echo)
    handle = handler.put(value)
    run_queued(app)
    assert seen == [value]
    assert handle.result(0) == value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda send: send.put(), "missing a required argument: 'to'"),
        (lambda send: send.put("ada", nope=1), "unexpected keyword argument 'nope'"),
        (lambda send: send.put(1), "Expected `str`, got `int` - at `\\$.to`"),
        (lambda send: send.put("ada", copies="2"), "Expected `int`, got `str`"),
        (lambda send: send.put("ada", copies=True), "Expected `int`, got `bool`"),
        (lambda send: send.put("ada", any=(1, 2)), "a tuple"),
        (lambda send: send.put("ada", any=float("nan")), "nan"),
        (lambda send: send.put("ada", any=object()), "object"),
        (lambda send: send.put("ada", delay=-1), "delay -1"),
        (lambda send: send.put_many([("ada",), (1,)]), "Expected `str`"),
        (lambda send: send.put_many(["ada"], copies=2), "copies is not a put option"),
        (lambda send: send.options(copies=2), "copies is not a put option"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_and_nothing_is_stored(
    app: App, call: Callable[[Any], object], message: str
) -> None:
    @app.task
    def send(to: str, copies: int = 1, any=None) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(penstock.BadValue, match=message):
        call(send)
    assert stored(app) == []


def test_an_argument_without_a_storable_type_is_refused(app: App) -> None:
    @app.task
    def send(to: list[object]) -> None: ...

    with pytest.raises(penstock.BadValue, match="it is or holds a Thing"):
        send.put([Thing()])


class Thing:
    pass


def test_a_dropped_tube_is_reopened(app: App) -> None:
    @app.task
    def send() -> None: ...

    send.put()
    app.broker.tube("default").truncate()
    app.broker.tube("default").drop()
    send.put()
    assert len(stored(app)) == 1


def test_a_plain_call_runs_here_and_stores_nothing(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    assert double(4) == 8
    assert (double.name, double.__doc__) == ("double", "Twice as much.")
    assert "default" not in [tube.name for tube in app.broker.tubes()]


# what a decorator refuses


def collides(delay: int) -> None: ...
def keywords(**given: int) -> None: ...
async def looping() -> None: ...
def plain() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (collides, {}, "parameter delay of collides has the name of a put option"),
        (keywords, {}, "accepts any keyword"),
        (plain, {"capacity": 3}, "option capacity of plain is unknown"),
        (plain, {"ttr": -1}, "ttr -1 is out of range"),
        (plain, {"max_attempts": 0}, "max_attempts 0 is out of range"),
        (plain, {"timeout": 3}, "option timeout of plain is unknown"),
        (plain, {"executor": "rocket"}, "executor 'rocket' of plain is unknown"),
        (plain, {"executor": "async"}, "not an async def"),
        (looping, {"executor": "process"}, "an async def"),
        (plain, {"backoff": 3}, "give a penstock.Backoff"),
        (plain, {"tube": "no way"}, "not a name"),
        (plain, {"name": "no way"}, "not a name"),
        ("plain", {}, "is not a function"),
    ],
)
def test_a_bad_declaration_is_refused(
    app: App, function: Callable[..., object], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(penstock.BadValue, match=message):
        app.task(**options)(function)
    assert app.handlers == {}


def test_two_tasks_cannot_have_the_same_name(app: App) -> None:
    app.task(plain)
    with pytest.raises(penstock.BadValue, match="has a task plain already"):
        app.task(plain)
    app.task(name="other")(plain)
    assert list(app.handlers) == ["plain", "other"]


def test_an_unresolvable_annotation_is_reported(app: App) -> None:
    @app.task
    def send(to: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(penstock.BadValue, match="name 'Nowhere' is not defined"):
        send.put("x")


def test_a_waiter_registers_before_it_polls(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the end of a task in another process would be noticed only by the next scan."""

    @app.task
    def work() -> int:
        return 1

    handle, store, calls = work.put(), app.broker.runtime.store, list[str]()
    outcomes, get = store.outcomes, store.get
    monkeypatch.setattr(store, "outcomes", lambda *what: (calls.append("outcomes"), outcomes(*what))[1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(store, "get", lambda *what: (calls.append("get"), get(*what))[1])  # type: ignore[func-returns-value]
    with pytest.raises(TimeoutError):
        handle.wait(0)
    assert calls == ["outcomes", "get"]


def test_a_task_is_put_for_a_time(app: App) -> None:
    @app.task(delay=600)
    def send(to: str) -> None: ...

    @app.task
    def remind(at: str) -> str:
        return at

    soon, past = datetime.now(UTC) + timedelta(seconds=60), datetime.now(UTC) - timedelta(days=1)
    handles: list[Any] = [
        send.options(at=soon).put("ada"), send.call("ada").options(at=soon).put(),
        *send.put_many(["ada", {"to": "ada", "at": soon}], at=soon), asyncio.run(send.options(at=soon).aio.put("ada")),
    ]  # fmt: skip
    tube = app.broker.tube("default")
    assert [tube.peek(handle.id).due for handle in handles] == [pytest.approx(soon.timestamp(), abs=1)] * 5
    assert tube.peek(send.options(at=past).put("ada").id).status == "r"
    with pytest.raises(penstock.BadValue, match="at and delay"):
        send.options(at=soon, delay=3).put("ada")
    # A parameter of that name wins over the option.
    handle = remind.options(at=past).put(at="noon")
    run_queued(app)
    assert handle.result(0) == "noon"


def test_put_many_refuses_a_single_item(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    given: Any
    for given in ("ada", b"ada", {"to": "ada"}):
        with pytest.raises(penstock.BadValue, match="which is one item: give a list"):
            send.put_many(given)
        with pytest.raises(penstock.BadValue, match="which is one item: give a list"):
            asyncio.run(send.aio.put_many(given))
