"""Worker reports: each worker stores its name, host and handler statistics, for the dashboard."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.notes import Notes
from penstock.errors import PenstockError
from penstock.worker.worker_stats import Runs

if TYPE_CHECKING:
    from penstock.runtime.runtime import BrokerRuntime
    from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")

REPORT_SECONDS = 10.0
# Seconds until the first report: a worker that ends earlier does not report at all.
FIRST_SECONDS = 1.0
# Seconds that a stopping worker waits for its last report.
LAST_WAIT = 1.0
# Seconds after its last report when a worker is no longer shown; three reports may be lost.
KEPT_SECONDS = 40.0
# The last report of a worker that has stopped is kept until the server has counted its runs.
LAST_SECONDS = 90.0
# Handlers in one report; those that ran most.
MAX_HANDLERS = 200
# Workers whose reports are kept.
MAX_WORKERS = 2000


class HandlerRuns(msgspec.Struct, frozen=True):
    """The runs of one handler for tasks of one tube, since its worker started."""

    handler: str
    tube: str
    runs: Runs


class WorkerReport(msgspec.Struct, frozen=True):
    """The report of one worker. `since` (its start) and `at` (of this report) are seconds since the epoch."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    concurrency: int
    running: int
    tubes: list[str]
    since: float
    at: float
    stopped: bool
    handlers: list[HandlerRuns]


def worker_notes(runtime: BrokerRuntime) -> Notes:
    """The stored notes that hold the reports of workers, by worker id."""
    return Notes(runtime, "workers", MAX_WORKERS)


def read_reports(notes: Notes) -> list[WorkerReport]:
    """The stored reports, longest-running worker first; reports of an incompatible version are left out."""
    found = []
    for value in notes.read().values():
        try:
            found.append(msgspec.convert(value, WorkerReport))
        except msgspec.ValidationError:
            continue
    return sorted(found, key=lambda report: (report.since, report.id))


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:  # run from source, not installed
        return "unknown"


class Reporter:
    """Stores a report every few seconds, in one thread; skips a report while the store is unavailable."""

    def __init__(self, worker: Worker, runtime: BrokerRuntime) -> None:
        self._worker = worker
        self._notes = worker_notes(runtime)
        self._id = os.urandom(8).hex()
        self._since = time.time()
        self._stop = threading.Event()
        self._thread = worker.state.thread("report", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store a last report, if the store answers soon, and stop the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LAST_WAIT)

    def _run(self) -> None:
        pause = FIRST_SECONDS
        while not self._stop.wait(pause):
            self._report(stopped=False)
            pause = REPORT_SECONDS
        if pause == REPORT_SECONDS:
            self._report(stopped=True)

    def _report(self, *, stopped: bool) -> None:
        try:
            report = msgspec.to_builtins(self._made(stopped=stopped))
            self._notes.write(self._id, report, LAST_SECONDS if stopped else KEPT_SECONDS)
        except PenstockError as error:
            log.debug("could not store the worker report (%s); retrying in %g s", error, REPORT_SECONDS)

    def _made(self, *, stopped: bool) -> WorkerReport:
        worker = self._worker
        runs = sorted(worker.state.stats.runs.copy().items(), key=lambda item: -item[1].count)[:MAX_HANDLERS]
        tubes = sorted(source.tube.name for source in worker.sources)
        return WorkerReport(
            self._id, worker.settings.name or "worker", socket.gethostname(), os.getpid(), _version(),
            worker.settings.concurrency, worker.state.slots.running, tubes[:MAX_HANDLERS], self._since, time.time(),
            stopped, [HandlerRuns(*key, value) for key, value in runs],
        )  # fmt: skip
