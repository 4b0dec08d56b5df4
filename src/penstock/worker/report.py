"""What a worker says of itself in the store, for the dashboard: who it is, and what its handlers did."""

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
# A worker that is over before this does not report at all.
FIRST_SECONDS = 1.0
# A worker that stops waits this long for its last report.
LAST_WAIT = 1.0
# After this long without a report a worker is not shown any more; three reports may be lost.
KEPT_SECONDS = 40.0
# The last report of a worker that has stopped is kept until the server has counted its runs.
LAST_SECONDS = 90.0
# Handlers in one report; those that ran most.
MAX_HANDLERS = 200
# Workers whose reports are kept.
MAX_WORKERS = 2000


class HandlerRuns(msgspec.Struct, frozen=True):
    """What one handler did on tasks of one tube, since its worker started."""

    handler: str
    tube: str
    runs: Runs


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker as it described itself. `since` and `at` are seconds since the epoch."""

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
    """Where workers keep their reports, each under its id."""
    return Notes(runtime, "workers", MAX_WORKERS)


def read_reports(notes: Notes) -> list[WorkerReport]:
    """The reports that are there, the longest-running worker first; those of another version may be left out."""
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
    except PackageNotFoundError:  # run from its sources, without an installation
        return "unknown"


class Reporter:
    """A thread that reports every few seconds; a store that is away misses a report."""

    def __init__(self, worker: Worker, runtime: BrokerRuntime) -> None:
        self._worker = worker
        self._notes = worker_notes(runtime)
        self._id = os.urandom(8).hex()
        self._since = time.time()
        self._stop = threading.Event()
        self._thread = worker.state.thread("report", self._run)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Report one last time, if the store answers soon."""
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
            log.debug("the report to the store failed (%s); the next one is due in %g s", error, REPORT_SECONDS)

    def _made(self, *, stopped: bool) -> WorkerReport:
        worker = self._worker
        runs = sorted(worker.state.stats.runs.copy().items(), key=lambda item: -item[1].count)[:MAX_HANDLERS]
        tubes = sorted(source.tube.name for source in worker.sources)
        return WorkerReport(
            self._id, worker.settings.name or "worker", socket.gethostname(), os.getpid(), _version(),
            worker.settings.concurrency, worker.state.slots.running, tubes[:MAX_HANDLERS], self._since, time.time(),
            stopped, [HandlerRuns(*key, value) for key, value in runs],
        )  # fmt: skip
