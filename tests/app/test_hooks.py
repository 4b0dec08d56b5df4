"""Hooks of an app, and trace contexts that travel with its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock
from penstock.app.app import App
from penstock.testing import run_queued
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.support.threads import until

pytestmark = pytest.mark.parametrize("store_url", ["memory"], indirect=True)
SPANS = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(provider)


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    SPANS.clear()
    app = penstock.App(store_url)
    yield app
    app.close()


def recorded(app: App) -> list[Any]:
    """Records every hook call of the app, in order."""
    seen: list[Any] = []
    app.on_put(lambda handles: seen.append(("put", [handle.id for handle in handles])))
    app.on_start(lambda task: seen.append(("start", task.id, task.attempts)))
    app.on_end(lambda task, error, seconds: seen.append(("end", task.id, repr(error), 0 <= seconds < 60)))
    return seen


def test_hooks_run_for_puts_starts_and_ends(app: App) -> None:
    seen = recorded(app)

    @app.task
    def work(number: int) -> int:
        return 1 // number

    work.put_many([1, 0])
    run_queued(app, raises=False)
    failed = ("end", 2, "ZeroDivisionError('integer division or modulo by zero')", True)
    assert seen == [("put", [1, 2]), ("start", 1, 1), ("end", 1, "None", True), ("start", 2, 1), failed]


def test_worker_metrics_cover_sync_and_async_handlers(app: App) -> None:
    @app.task
    def plain() -> None: ...

    @app.task
    async def awaited() -> None: ...

    seen = recorded(app)
    plain.put()
    worker = Worker(app, Settings(concurrency=1))
    worker.start()
    until(lambda: len(seen) == 3)
    awaited.put()
    until(lambda: len(seen) == 6)
    worker.stop()
    assert [what for what, *_ in seen] == ["put", "start", "end", "put", "start", "end"]


def test_an_error_in_a_hook_is_logged_and_ignored(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.on_start
    def broken(task: penstock.Task) -> None:
        raise RuntimeError("broken hook")

    @app.task
    def work() -> str:
        return "done"

    handle = work.put()
    with caplog.at_level(logging.ERROR, "penstock"):
        run_queued(app)
    assert handle.result(0) == "done"
    assert "broken hook" in caplog.text


def spans() -> dict[str, ReadableSpan]:
    return {span.name: span for span in SPANS.get_finished_spans()}


def _ids(span: trace.SpanContext | None) -> tuple[int, int]:
    assert span is not None
    return span.trace_id, span.span_id


@pytest.mark.parametrize("sync", [True, False])
def test_the_span_of_a_put_continues_in_the_handler(app: App, sync: bool) -> None:
    tracer = trace.get_tracer("test")

    @app.task(tube="mail")
    def send(to: str) -> None:
        with tracer.start_as_current_span("inside"):
            pass

    @app.task
    async def fetch() -> None:
        with tracer.start_as_current_span("awaited"):
            pass

    async def put() -> None:
        with tracer.start_as_current_span("request"):
            await send.aio.put("ada")
            await fetch.aio.put()

    if sync:
        with tracer.start_as_current_span("request"):
            send.put("ada")
            fetch.put()
    else:
        asyncio.run(put())
    worker = Worker(app)
    worker.start()
    until(lambda: len(spans()) == 7)
    worker.stop()
    found = spans()
    for name, inside in (("send", "inside"), ("fetch", "awaited")):
        assert _ids(found[f"put {name}"].parent) == _ids(found["request"].get_span_context())
        assert _ids(found[f"run {name}"].parent) == _ids(found[f"put {name}"].get_span_context())
        assert _ids(found[inside].parent) == _ids(found[f"run {name}"].get_span_context())
    facts = {"messaging.system": "penstock", "messaging.destination.name": "mail", "penstock.task": "send"}
    assert found["put send"].kind is trace.SpanKind.PRODUCER
    assert found["put send"].attributes == {**facts, "messaging.batch.message_count": 1}
    assert found["run send"].kind is trace.SpanKind.CONSUMER
    assert found["run send"].attributes == {**facts, "messaging.message.id": "1"}


def test_the_span_of_a_put_continues_in_chains_and_groups(app: App) -> None:
    @app.task
    def first() -> int:
        return 1

    @app.task
    def second(number: int) -> None: ...

    @app.task
    def member() -> None: ...

    @app.task
    def last() -> None: ...

    seen = recorded(app)
    with trace.get_tracer("test").start_as_current_span("request"):
        penstock.chain(first.call(), second.call()).put()
        with app.group("g") as group:
            group.put(member.call())
            group.then(last.call())
    assert seen == [("put", [1]), ("put", [2])]
    assert run_queued(app) == 4
    found = spans()
    for run, put in (("first", "first"), ("second", "first"), ("member", "member"), ("last", "last")):
        assert _ids(found[f"put {put}"].parent) == _ids(found["request"].get_span_context())
        assert _ids(found[f"run {run}"].parent) == _ids(found[f"put {put}"].get_span_context())


def test_a_tick_of_a_schedule_starts_a_trace(app: App) -> None:
    @app.every(0.1)
    def tick() -> None: ...

    worker = Worker(app)
    worker.start()
    until(lambda: len(SPANS.get_finished_spans()) >= 2)
    worker.stop()
    runs = SPANS.get_finished_spans()
    assert {(span.name, span.parent) for span in runs} == {("run tick", None)}
    assert len({_ids(span.get_span_context()) for span in runs}) == len(runs)


def test_without_a_span_no_trace_context_is_stored(app: App) -> None:
    @app.task
    def work() -> None: ...

    work.put()
    assert app.broker.tube("default").peek(1).data == {"task": "work", "args": {}}
    app.broker.tube("default").put({"task": "work", "args": {}, "trace": {"traceparent": 7}})
    assert run_queued(app) == 2
    assert spans() == {}


def outcomes(app: App) -> list[tuple[str, int, str]]:
    """Records the calls of on_retry and on_bury, in order."""
    seen: list[tuple[str, int, str]] = []
    app.on_retry(lambda task, error: seen.append(("retry", task.id, repr(error))))
    app.on_bury(lambda task, error: seen.append(("bury", task.id, repr(error))))
    return seen


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("by", ["worker", "run_queued"])
def test_retry_and_bury_hooks_get_the_error(app: App, sync: bool, by: str) -> None:
    seen = outcomes(app)
    errors: list[BaseException] = [
        ValueError("no"), penstock.Retry(60), penstock.Bury("never"), penstock.Snooze(60), penstock.Fail("broken"),
    ]  # fmt: skip

    def plain(number: int) -> None:
        raise errors[number]

    async def awaited(number: int) -> None:
        raise errors[number]

    work = app.task(name="work", max_attempts=2)(plain if sync else awaited)
    last = app.task(name="last", max_attempts=1)(plain if sync else awaited)
    work.put_many(range(5))
    last.put(0)
    last.put(1)
    if by == "worker":
        worker = Worker(app, Settings(concurrency=1))
        worker.start()
        until(lambda: len(seen) == 5)
        worker.stop()
    else:
        run_queued(app, raises=False)
    assert seen == [
        ("retry", 1, "ValueError('no')"), ("retry", 2, repr(errors[1])), ("bury", 3, repr(errors[2])),
        ("bury", 6, "ValueError('no')"), ("bury", 7, repr(errors[1])),
    ]  # fmt: skip


def test_a_result_that_cannot_be_stored_is_reported_as_a_bury(app: App) -> None:
    seen = outcomes(app)

    @app.task
    def work() -> Any:
        return object()

    work.put()
    run_queued(app)
    [(what, id, error)] = seen
    assert (what, id) == ("bury", 1)
    assert "its result cannot be kept" in error


def log_of_arounds(app: App) -> list[str]:
    seen: list[str] = []

    @app.around
    def outer(task: penstock.Task) -> Iterator[None]:
        seen.append(f"outer {task.id}")
        try:
            yield
        except Exception as error:
            seen.append(f"outer {error!r}")
            raise
        seen.append("outer over")

    @app.around
    async def awaited(task: penstock.Task) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(f"awaited {task.id}")
        yield
        seen.append("awaited over")

    @app.around
    def inner(task: penstock.Task) -> Iterator[None]:
        assert penstock.current_task().id == task.id
        seen.append("inner")
        yield
        seen.append("inner over")

    return seen


@pytest.mark.parametrize("by", ["worker", "run_queued"])
def test_generators_are_around_every_run(app: App, by: str) -> None:
    seen = log_of_arounds(app)

    @app.task
    def plain(number: int) -> float:
        return 1 / number

    @app.task
    async def coroutine() -> str:
        seen.append("coroutine")
        return "done"

    def run() -> None:
        if by == "run_queued":
            run_queued(app, raises=False)
            return
        worker = Worker(app, Settings(concurrency=1))
        worker.start()
        until(lambda: len(seen) == 7)
        worker.stop()

    good, bad = plain.put(1), plain.put(0)
    run()
    assert seen == [
        "outer 1", "inner", "inner over", "outer over",
        "outer 2", "inner", "outer ZeroDivisionError('division by zero')",
    ]  # fmt: skip
    assert (good.result(0), app.broker.tube("default").peek(bad.id).status) == (1, "~")
    seen.clear()
    handle = coroutine.put()
    run()
    assert handle.result(0) == "done"
    assert seen == ["outer 3", "awaited 3", "inner", "coroutine", "inner over", "awaited over", "outer over"]


def test_an_around_hook_can_suppress_or_replace_an_exception(app: App) -> None:
    """As with a context manager: an exception that it swallows is handled, and one that it raises replaces it."""

    @app.around
    def decide(task: penstock.Task) -> Iterator[None]:
        try:
            yield
        except KeyError:
            pass
        except ValueError as error:
            raise penstock.Fail("bad value") from error

    @app.task
    def work(kind: str) -> str:
        raise KeyError if kind == "key" else ValueError

    caught, failed = work.put("key"), work.put("value")
    run_queued(app)
    assert caught.wait(0) == penstock.Outcome("done")
    assert (failed.wait(0).status, failed.wait(0).error) == ("failed", "bad value")


def test_an_around_hook_must_yield_once(app: App) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(penstock.BadValue, match="give a generator function that yields once"):
        app.around(lambda task: iter(()))

    @app.around
    def never(task: penstock.Task) -> Iterator[None]:
        if task.id < 0:
            yield

    work.put()
    with pytest.raises(RuntimeError, match="didn't yield"):
        run_queued(app)


def test_a_worker_starts_and_ends_with_its_hooks(app: App, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []

    @app.on_startup
    def connect() -> None:
        seen.append("startup")

    @app.on_startup
    async def begin() -> None:
        seen.append(asyncio.get_running_loop())

    @app.on_shutdown
    async def end() -> None:
        seen.append(asyncio.get_running_loop())
        raise RuntimeError("broken hook")

    @app.on_shutdown
    def disconnect() -> None:
        seen.append("shutdown")

    @app.task
    async def work() -> None:
        seen.append(asyncio.get_running_loop())

    work.put()
    worker = Worker(app)
    worker.start()
    until(lambda: len(seen) == 3)
    worker.stop()
    loop = seen[1]
    assert seen == ["startup", loop, loop, loop, "shutdown"]
    assert "broken hook" in caplog.text


def test_async_hooks_need_no_async_handler(app: App) -> None:
    seen: list[str] = []

    @app.on_startup
    async def begin() -> None:
        seen.append("startup")

    @app.task
    def work() -> None: ...

    worker = Worker(app)
    worker.start()
    worker.stop()
    assert seen == ["startup"]


def test_a_startup_that_fails_stops_the_worker(app: App) -> None:
    @app.on_startup
    def connect() -> None:
        raise ConnectionError("no database")

    @app.task
    def work() -> None: ...

    worker = Worker(app)
    with pytest.raises(ConnectionError, match="no database"):
        worker.start()


@pytest.mark.parametrize("sync", [True, False])
def test_every_log_record_of_a_handler_names_its_task(app: App, caplog: pytest.LogCaptureFixture, sync: bool) -> None:
    log = logging.getLogger("shop")

    def plain() -> None:
        log.warning("inside", extra={"task_id": "its own"})

    async def awaited() -> None:
        await asyncio.sleep(0)
        log.warning("inside")

    work = app.task(name="work", tube="mail")(plain if sync else awaited)
    work.put()
    worker = Worker(app)
    worker.start()
    until(lambda: "inside" in caplog.text)
    worker.stop()
    log.warning("outside")
    found = [(vars(record)) for record in caplog.records if record.name == "shop"]
    assert [[facts[f"penstock_{name}"] for name in ("id", "task", "tube")] for facts in found] == [
        [1, "work", "mail"],
        [None, None, None],
    ]
