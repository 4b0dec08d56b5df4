"""What a worker reports to the store, for the dashboard."""

from __future__ import annotations

import os
import time

import pytest

import penstock
from penstock.worker import report
from penstock.worker.report import WorkerReport, read_reports, worker_notes
from penstock.worker.settings import make_settings
from penstock.worker.worker import Worker
from penstock.worker.worker_stats import BUCKETS, Runs

PATIENCE = 60


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_reports_who_it_is_and_what_its_handlers_did(monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    monkeypatch.setattr(report, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(report, "REPORT_SECONDS", PATIENCE if stopped else 0.05)
    app = penstock.App("memory://")

    @app.task(tube="mail", max_attempts=1)
    def send(to: str) -> None:
        if to == "nobody":
            raise ValueError(to)
        if to == "later":
            raise penstock.Snooze(3600)

    worker = Worker(app, make_settings(concurrency=3, name="shop:app"))
    notes = worker_notes(app.broker.runtime)
    worker.start()
    try:
        until(lambda: bool(read_reports(notes)))
        send.put_many(["ada", "nobody", "later"])
        until(lambda: app.broker.tube("mail").stats().calls.take == 3 and not worker.state.in_flight.held)
        if not stopped:
            until(lambda: runs(read_reports(notes)).count == 3)
    finally:
        worker.stop(0)
    [found] = read_reports(notes)
    assert (found.name, found.pid, found.concurrency, found.tubes) == ("shop:app", os.getpid(), 3, ["mail"])
    assert found.stopped
    assert (runs([found]).count, runs([found]).failed, sum(runs([found]).buckets)) == (3, 1, 3)
    app.close()


def runs(reports: list[WorkerReport]) -> Runs:
    """The statistics of the only handler of the only worker."""
    return reports[0].handlers[0].runs if reports and reports[0].handlers else Runs()


def until(condition: object) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_runs_add_up() -> None:
    first, both = Runs(), Runs()
    for seconds in (0.001, 0.02, 7000.0):
        first.note(seconds, failed=False)
        both.note(seconds, failed=False)
    for seconds in (0.3, 0.3):
        both.note(seconds, failed=True)
    new = both.since(first)
    assert (new.count, new.failed, new.longest, round(new.mean, 6)) == (2, 2, 0.5, 0.3)
    new.add(first)
    assert (new.count, new.failed, new.longest) == (5, 2, 7000.0)
    assert (new.percentile(0.2), new.percentile(0.4), new.percentile(1)) == (BUCKETS[0], 0.05, 7000.0)
    assert Runs().percentile(0.95) == Runs().mean == 0
