"""Bulk actions: apply one verb to every matching task, in the background, in small steps, with progress.

An action changes only tasks that were put before it began. Its progress is recorded in the store: if its server stops,
another server of the store continues it, or the same one after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress

import msgspec

from penstock.broker.admin import change_many, matcher
from penstock.broker.notes import Notes
from penstock.broker.tube import Tube, find_records
from penstock.core.task import Status
from penstock.errors import PenstockError, StoreUnavailable
from penstock.server.http.http_errors import Refused
from penstock.server.http.store_access import Access

log = logging.getLogger("penstock")

# The number of tasks that one step reads and changes.
STEP = 500
# Concurrent bulk actions of one server.
MAX_RUNNING = 4
MAX_KEPT = 50
KEPT_SECONDS = 7 * 24 * 3600.0
# Seconds between stored updates of the progress of one action.
RECORD_SECONDS = 1.0
# Seconds without an update after which an action has lost its server.
LOST_SECONDS = 30.0
# Seconds between checks for such actions.
CHECK_SECONDS = 10.0
#: The verbs of bulk actions, with their past tense.
BULK = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}
#: The error in the outcome of a task that an operator cancels.
CANCELLED = "cancelled in the dashboard"


class Search(msgspec.Struct, frozen=True):
    """Selects tasks: by status ("" for all) and by a text that they contain ("" for any)."""

    status: Status | None
    text: str


class Job(msgspec.Struct):
    """A bulk action.

    `expected` is the number of tasks to read, `upto` the last id when it began, `at` when its progress was last stored.
    """

    id: str
    tube: str
    verb: str
    search: Search
    who: str
    expected: int
    upto: int
    began: float
    at: float = 0.0
    ended: float | None = None
    after: int = 0
    read: int = 0
    changed: int = 0
    problem: str = ""
    stopping: bool = False

    @property
    def state(self) -> str:
        """The state in one word, for display."""
        if self.ended is None:
            return "stopping" if self.stopping else "running"
        return "failed" if self.problem else "stopped" if self.stopping else "done"

    @property
    def share(self) -> float:
        """The progress from 0 to 1."""
        return 1.0 if self.state == "done" else min(0.99, self.read / max(1, self.expected))


class Jobs:
    """The bulk actions of a store: runs those of this server, and reads the stored progress of all."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._notes = Notes(access.broker.sync.runtime, "bulk", 2 * MAX_KEPT)
        self._server = os.urandom(6).hex()
        self._running: dict[str, tuple[Job, asyncio.Task[None]]] = {}

    async def newest_first(self) -> list[Job]:
        """All stored actions, newest first; those that run here with their current progress."""
        stored = await self._stored()
        return [self._running[job.id][0] if job.id in self._running else job for job in reversed(stored)][:MAX_KEPT]

    async def start(self, tube: Tube, verb: str, search: Search, who: str) -> Job:
        """Start a bulk action."""
        if len(self._running) >= MAX_RUNNING:
            raise Refused(503, f"{MAX_RUNNING} bulk actions are running: wait until one has ended, or stop one")
        expected, upto = await self._access.call(_extent, tube, search)
        job = Job(os.urandom(4).hex(), tube.name, verb, search, who, expected, upto, time.time())
        await self._record(job)
        self._begin(job)
        return job

    async def stop(self, id: str) -> None:
        """Stop an action after its current step, on whichever server it runs."""
        if id in self._running:
            self._running[id][0].stopping = True
        else:
            await self._access.call(self._notes.write, f"stop {id}", True, KEPT_SECONDS)

    async def run(self) -> None:
        """Continue actions whose server has stopped, until cancelled."""
        while True:
            try:
                await self.continue_lost()
            except PenstockError as error:
                log.warning("could not look for interrupted bulk actions (%s); retrying", error)
            await asyncio.sleep(CHECK_SECONDS)

    async def continue_lost(self) -> None:
        """Continue the actions that no server runs; if several servers try, the first to claim an action runs it."""
        lost = time.time() - LOST_SECONDS
        for job in await self._stored():
            if job.ended is None and job.at <= lost and job.id not in self._running:
                claim = f"claim {job.id} {job.at}"
                write = self._notes.write
                if await self._access.call(write, claim, self._server, KEPT_SECONDS, keep=True) == self._server:
                    self._begin(job)

    async def close(self) -> None:
        """Stop the actions of this server; another server, or the next start, continues them."""
        left = list(self._running.values())
        for _, running in left:
            running.cancel()
        await asyncio.gather(*(running for _, running in left), return_exceptions=True)
        for job, _ in left:
            if job.ended is None:
                try:
                    await self._record(job, time.time() - LOST_SECONDS)
                except PenstockError as error:
                    log.warning(
                        "could not hand over bulk action %s (%s); it continues in %d s", job.id, error, LOST_SECONDS
                    )

    def _begin(self, job: Job) -> None:
        self._running[job.id] = job, asyncio.ensure_future(self._run(job))

    async def _run(self, job: Job) -> None:
        try:
            job.problem = await self._work(job)
            job.ended = time.time()
            await self._record(job)
        except PenstockError as error:
            what = f"{job.verb} in tube {job.tube}"
            log.warning("bulk action %s (%s) interrupted (%s); retrying in %d s", job.id, what, error, LOST_SECONDS)
        finally:
            del self._running[job.id]

    async def _work(self, job: Job) -> str:
        """Change the remaining tasks. Returns the error as text, or ""; raises StoreUnavailable."""
        try:
            tube = (await self._access.tube(job.tube)).sync
            while not job.stopping:
                began = time.monotonic()
                if not await self._access.call(_step, tube, job):
                    break
                if time.time() - job.at > RECORD_SECONDS:
                    await self._record(job)
                # Pause as long as the step took, to leave half of the time to other callers.
                await asyncio.sleep(min(time.monotonic() - began, 0.5))
            return ""
        except StoreUnavailable:
            raise
        except PenstockError as error:
            return str(error)
        except Exception:
            log.exception("bulk action %s (%s in tube %s) failed", job.id, job.verb, job.tube)
            return "the server failed: its log has the details"

    async def _record(self, job: Job, at: float | None = None) -> None:
        """Store the progress of an action, and check whether it was asked to stop."""
        job.at = time.time() if at is None else at
        await self._access.call(self._notes.write, job.id, msgspec.to_builtins(job), KEPT_SECONDS)
        job.stopping = job.stopping or await self._access.call(self._notes.has, f"stop {job.id}")

    async def _stored(self) -> list[Job]:
        """The stored actions, oldest first."""
        notes = await self._access.call(self._notes.read)
        jobs: list[Job] = []
        for key, value in notes.items():
            if " " not in key:
                with suppress(msgspec.ValidationError):  # written by another version
                    jobs.append(msgspec.convert(value, Job))
                    jobs[-1].stopping |= f"stop {key}" in notes
        return jobs


def _extent(tube: Tube, search: Search) -> tuple[int, int]:
    """The number of tasks that an action has to read, and the last id."""
    counters = tube.runtime.store.counters(tube.stored)
    counts = counters.counts
    return counts.stored if search.status is None else getattr(counts, search.status.name.lower()), counters.last_id


def _step(tube: Tube, job: Job) -> bool:
    """Read and change the next tasks. Returns False when there are no more."""
    found = list(find_records(tube, job.search.status, STEP, job.after))
    records = [record for record in found if record.id <= job.upto]
    matches = matcher(job.search.text)
    job.changed += change_many(tube, job.verb, [record for record in records if matches(record)], CANCELLED)
    job.read += len(records)
    if records:
        job.after = records[-1].id
    return len(found) == STEP and len(records) == len(found)
