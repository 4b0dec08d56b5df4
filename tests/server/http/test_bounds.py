"""Limits for what grows with tubes, tasks and slow readers."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

import penstock
from penstock.broker import admin
from penstock.core.results import Counts, Event
from penstock.core.task import Record, record_of
from penstock.server.http import metrics, sampler
from penstock.server.http.events import MAX_WAITING, Stream
from penstock.server.http.navigation import Navigation
from penstock.server.http.sampler import Sample
from tests.server.http.page_times import PAGES, fill
from tests.server.http.server_thread import Serving, serving


@pytest.fixture
def record() -> Record:
    with penstock.connect("memory://record") as broker:
        return record_of(broker.tube("mail").put(1))


def test_a_slow_reader_loses_task_events_and_gets_a_notice(record: Record) -> None:
    async def read() -> str:
        stream = Stream(None)
        for _ in range(MAX_WAITING + 7):
            stream.offer("mail", Event(1, "put", record))
        stream.counted(Sample(0.0, {}, {}), Sample(1.0, {}, {"mail": Counts(ready=3)}))
        return (await stream.next()).decode()

    text = asyncio.run(read())
    assert text.count("event: task\n") == MAX_WAITING
    assert 'event: lost\ndata: {"events":7}\n' in text
    counters = json.loads(text.rpartition("data: ")[2])
    assert counters["tubes"]["mail"]["ready"] == 3


def test_a_stream_of_one_tube_has_events_of_no_other(record: Record) -> None:
    async def read() -> bytes:
        stream = Stream("mail")
        stream.offer("other", Event(2, "put", record))
        stream.counted(Sample(0.0, {}, {}), Sample(1.0, {}, {"other": Counts(ready=3)}))
        return await stream.next()

    event = json.loads(asyncio.run(read()).rpartition(b"data: ")[2])
    assert (event["tubes"], event["total"]["ready"]) == ({}, 0)


def test_labels_of_metrics_are_bounded() -> None:
    counts = {f"t{number:04}": Counts(ready=1) for number in range(metrics.MAX_TUBES + 30)}
    text = metrics.exposition(Sample(1.0, {}, counts), 0, metrics.Meter()).decode()
    assert 'penstock_tasks{state="ready",tube="(other)"} 30.0' in text
    assert text.count('state="ready"') == metrics.MAX_TUBES + 1
    assert f"penstock_tubes {metrics.MAX_TUBES + 30}.0" in text


def test_histograms_are_bounded_and_add_up() -> None:
    histogram = metrics.Histogram()
    for tube in range(metrics.MAX_TUBES + 5):
        histogram.add(tube, 0.02)
    histogram.add(0, 1e9)
    family = histogram.family("x", "x", {0: "first"})
    numbers = {(s.name, s.labels["tube"], s.labels.get("le")): s.value for s in family.samples}
    assert numbers["x_bucket", "first", "0.05"] == 1
    assert numbers["x_bucket", "first", "+Inf"] == 2
    assert numbers["x_count", metrics.OTHER, None] == 5


def test_hand_outs_that_are_never_acked_are_forgotten(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_HELD", 10)
    meter = metrics.Meter()
    meter.tap([Event(tube, "take", record) for tube in range(50)])
    assert len(meter._held) == 10


def test_without_tokens_a_form_still_needs_its_csrf_token() -> None:
    with serving("memory://csrf") as server:
        server.post("/api/tubes/mail/tasks", {"data": 1})
        assert server.client.post("/tubes/mail/tasks/1/bury", data={"csrf_token": ""}).status_code == 403
        assert server.client.post("/tubes/mail/truncate", data={"csrf_token": "0" * 64}).status_code == 403
        assert server.get("/api/tubes/mail/tasks/1").json()["status"] == "r"


def test_store_calls_of_a_page_do_not_grow_with_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SECONDS", 3600.0)  # no refresh in between
    monkeypatch.setattr(Navigation, "run", _nothing)
    with serving("memory://bounded") as server, penstock.connect("memory://bounded") as broker:
        fill(broker, tubes=20, tasks=20)
        few = {path: store_calls(server, path) for path in PAGES}
        fill(broker, tubes=20, tasks=4000)
        many = {path: store_calls(server, path) for path in PAGES}
    # One or two for each tube; for callbacks, eight; one for each micro-queue that is shown.
    most = dict.fromkeys(PAGES, 60) | {"/callbacks": 200, "/tubes/tube-001/utubes": admin.MAX_MICRO_QUEUES + 60}
    assert {path: calls for path, calls in many.items() if calls > most[path]} == {}
    # A page of tasks is read in parts, however many follow it.
    grown = {path for path, calls in many.items() if calls > max(25, few[path] * 2)}
    assert grown <= {"/tubes/tube-001/utubes"}


def test_store_calls_of_metrics_do_not_grow_with_tubes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SECONDS", 3600.0)
    with serving("memory://metered") as server, penstock.connect("memory://metered") as broker:
        fill(broker, tubes=5, tasks=20)
        few = store_calls(server, "/metrics")
        fill(broker, tubes=100, tasks=400)
        server.app.sampler.sample = Sample(0.0, {}, {})  # read again
        assert store_calls(server, "/metrics") <= few <= 8
        assert 'penstock_oldest_ready_seconds{tube="tube-099"}' in server.get("/metrics").text


async def _nothing(navigation: Navigation) -> None:
    """Count nothing in the background."""
    await asyncio.Event().wait()


def store_calls(server: Serving, path: str) -> int:
    """The number of store steps for a page whose counters are not cached."""
    store = server.app.access.broker.sync.runtime.store
    step, calls = store.step, 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += threading.current_thread().name.startswith("penstock-aio")
        return step(*arguments, **options)

    store.step = counted  # type: ignore[method-assign]
    try:
        assert server.get(path).status_code == 200, path
    finally:
        del store.step
    return calls
