"""Processes that are sent several fast tasks at once: none runs twice, and a slow one delays no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.support.worker_process import PATIENCE
from tests.worker import jobs

Send = Callable[[str], None]


@pytest.fixture
def warm(app: App, tmp_path: Path) -> Callable[[], None]:
    """Let the worker measure that the handler is fast."""

    def run() -> None:
        handles = jobs.chunked.put_many([(number, str(tmp_path / "warm")) for number in range(200)])
        assert [handle.result(PATIENCE) for handle in handles] == list(range(200))

    return run


def start(app: App, processes: int) -> Worker:
    worker = Worker(app, Settings(tubes=("chunks",), processes=processes))
    worker.start()
    return worker


def test_each_task_is_run_once_and_has_its_own_result(app: App, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    worker = start(app, 2)
    try:
        handles = jobs.chunked.put_many([(number, str(path)) for number in range(2000)])
        assert [handle.result(PATIENCE) for handle in handles] == list(range(2000))
    finally:
        worker.stop(5)
    assert sorted(map(int, path.read_text().split())) == list(range(2000))
    assert app.broker.tube("chunks").stats().calls.ack == 2000


def test_tasks_prefetched_behind_a_slow_one_are_run_by_others(
    app: App, tmp_path: Path, send: Send, warm: Callable[[], None]
) -> None:
    path = tmp_path / "journal"
    worker = start(app, 2)
    try:
        warm()
        slow, *others = jobs.chunked.put_many([(number, str(path)) for number in (-1, *range(60))])
        assert [handle.result(PATIENCE) for handle in others] == list(range(60))
        assert slow.status == "taken"
        send("chunk")
        assert slow.result(PATIENCE) == -1
    finally:
        worker.stop(5)
    assert Counter(path.read_text().split()) == Counter(map(str, (-1, *range(60))))


def test_prefetched_tasks_of_a_dead_process_lose_no_attempt(app: App, tmp_path: Path, warm: Callable[[], None]) -> None:
    path = tmp_path / "journal"
    worker = start(app, 1)
    try:
        warm()
        handles = jobs.chunked.put_many([(number, str(path)) for number in (1, 2, -2, 3, 4)], max_attempts=2)
        assert [handle.result(PATIENCE) for handle in handles] == [1, 2, -2, 3, 4]
    finally:
        worker.stop(5)
    assert Counter(path.read_text().split()) == Counter(["1", "2", "-2", "-2", "3", "4"])
