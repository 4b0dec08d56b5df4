"""Bulk actions: one verb on every task that matches, in the background and in small steps, with its progress.

A job touches only tasks that were put before it began. It lives in the memory of one server: when that stops, what the
job has changed stays changed, and the rest is as it was.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker import admin
from penstock.broker.tube import Tube, find_records
from penstock.core.task import Status
from penstock.errors import PenstockError
from penstock.server.http.http_errors import Refused
from penstock.server.http.store_access import Access

log = logging.getLogger("penstock")

# Tasks read, and changed, in one step.
STEP = 500
MAX_RUNNING = 4
MAX_KEPT = 50
#: The verbs of a bulk action, each with what it did.
BULK = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}
#: The error in the outcome of a task that an operator cancels.
CANCELLED = "cancelled in the dashboard"


class Search(NamedTuple):
    """Which tasks: of one status, or of all, with a text in them, or any."""

    status: Status | None
    text: str


@dataclass(eq=False)
class Job:
    """A bulk action. `expected`: how many tasks it reads; `upto`: the last id when it began."""

    number: int
    tube: str
    verb: str
    search: Search
    who: str
    expected: int
    upto: int
    began: float = field(default_factory=time.time)
    ended: float | None = None
    after: int = 0
    read: int = 0
    changed: int = 0
    problem: str = ""
    stopping: bool = False

    @property
    def state(self) -> str:
        """One word for people."""
        if self.ended is None:
            return "stopping" if self.stopping else "running"
        return "failed" if self.problem else "stopped" if self.stopping else "done"

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return 1.0 if self.state == "done" else min(0.99, self.read / max(1, self.expected))


class Jobs:
    """The bulk actions of one server, the newest last."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._numbers = itertools.count(1)
        self._kept: deque[Job] = deque(maxlen=MAX_KEPT)
        self._running: set[asyncio.Task[None]] = set()

    def newest_first(self) -> list[Job]:
        """All that are remembered."""
        return list(reversed(self._kept))

    @property
    def running(self) -> int:
        """How many are under way."""
        return len(self._running)

    async def start(self, tube: Tube, verb: str, search: Search, who: str) -> Job:
        """Begin one."""
        if len(self._running) >= MAX_RUNNING:
            raise Refused(503, f"{MAX_RUNNING} bulk actions are running: wait until one has ended, or stop one")
        expected, upto = await self._access.call(_extent, tube, search)
        job = Job(next(self._numbers), tube.name, verb, search, who, expected, upto)
        self._kept.append(job)
        running = asyncio.ensure_future(self._run(tube, job))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return job

    def stop(self, number: int) -> None:
        """End one after its current step."""
        for job in self._kept:
            job.stopping = job.stopping or job.number == number

    async def close(self) -> None:
        """End all of them."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, tube: Tube, job: Job) -> None:
        try:
            while not job.stopping:
                began = time.monotonic()
                if not await self._access.call(_step, tube, job):
                    break
                # Half of the time is for others.
                await asyncio.sleep(min(time.monotonic() - began, 0.5))
        except PenstockError as error:
            job.problem = str(error)
        except Exception:
            job.problem = "the server failed: its log says how"
            log.exception("bulk action %d (%s in tube %s) failed", job.number, job.verb, job.tube)
        finally:
            job.ended = time.time()


def _extent(tube: Tube, search: Search) -> tuple[int, int]:
    """How many tasks there are to be read, and the last id."""
    counters = tube.runtime.store.counters(tube.stored)
    counts = counters.counts
    return counts.stored if search.status is None else getattr(counts, search.status.name.lower()), counters.last_id


def _step(tube: Tube, job: Job) -> bool:
    """Change some tasks; False when there are no more."""
    found = list(find_records(tube, job.search.status, STEP, job.after))
    records = [record for record in found if record.id <= job.upto]
    matches = admin.matcher(job.search.text)
    job.changed += admin.change_many(tube, job.verb, [record for record in records if matches(record)], CANCELLED)
    job.read += len(records)
    if records:
        job.after = records[-1].id
    return len(found) == STEP and len(records) == len(found)
