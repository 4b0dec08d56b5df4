"""Hooks of an app, and traces that go with its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
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


def told(app: App) -> list[Any]:
    """Everything that the hooks of the app are told, in order."""
    seen: list[Any] = []
    app.on_put(lambda handles: seen.append(("put", [handle.id for handle in handles])))
    app.on_start(lambda task: seen.append(("start", task.id, task.attempts)))
    app.on_end(lambda task, error, seconds: seen.append(("end", task.id, repr(error), 0 <= seconds < 60)))
    return seen


def test_hooks_are_told_of_puts_starts_and_ends(app: App) -> None:
    seen = told(app)

    @app.task
    def work(number: int) -> int:
        return 1 // number

    work.put_many([1, 0])
    run_queued(app, raises=False)
    failed = ("end", 2, "ZeroDivisionError('integer division or modulo by zero')", True)
    assert seen == [("put", [1, 2]), ("start", 1, 1), ("end", 1, "None", True), ("start", 2, 1), failed]


def test_a_worker_tells_of_sync_and_async_handlers(app: App) -> None:
    @app.task
    def plain() -> None: ...

    @app.task
    async def awaited() -> None: ...

    seen = told(app)
    plain.put()
    worker = Worker(app, Settings(concurrency=1))
    worker.start()
    until(lambda: len(seen) == 3)
    awaited.put()
    until(lambda: len(seen) == 6)
    worker.stop()
    assert [what for what, *_ in seen] == ["put", "start", "end", "put", "start", "end"]


def test_a_hook_that_raises_harms_nothing(app: App, caplog: pytest.LogCaptureFixture) -> None:
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
def test_the_span_of_a_put_goes_on_in_the_handler(app: App, sync: bool) -> None:
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
    until(lambda: len(spans()) == 5)
    worker.stop()
    found = spans()
    for run, inside in (("run send", "inside"), ("run fetch", "awaited")):
        assert _ids(found[run].parent) == _ids(found["request"].get_span_context())
        assert _ids(found[inside].parent) == _ids(found[run].get_span_context())
    assert found["run send"].attributes == {
        "messaging.system": "penstock", "messaging.destination.name": "mail", "messaging.message.id": "1",
    }  # fmt: skip


def test_without_a_span_nothing_is_stored_of_it(app: App) -> None:
    @app.task
    def work() -> None: ...

    work.put()
    assert app.broker.tube("default").peek(1).data == {"task": "work", "args": {}}
    app.broker.tube("default").put({"task": "work", "args": {}, "trace": {"traceparent": 7}})
    assert run_queued(app) == 2
    assert spans() == {}
