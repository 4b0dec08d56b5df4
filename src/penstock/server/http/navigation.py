"""The counts beside the links of the navigation, read at most every few seconds."""

from __future__ import annotations

import time

from penstock.errors import NoSuchTube
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.http.history import HOUR, History, summed
from penstock.server.http.operations import Server
from penstock.server.http.sampler import Sampler

MAX_AGE = 5.0


class Navigation:
    """The counts, by the path of their link.

    Groups and callbacks have none: no store keeps a counter of live groups, or of tasks with a callback, so a number
    would mean counting rows in every tube.
    """

    def __init__(self, server: Server, sampler: Sampler, history: History) -> None:
        self._server = server
        self._sampler = sampler
        self._history = history
        self.counts: dict[str, int] = {}
        self._read = 0.0

    async def read(self) -> None:
        """Read the numbers again if they are old."""
        if time.monotonic() - self._read > MAX_AGE:
            self._read = time.monotonic()
            workers = await self._history.workers()
            handlers = summed(each for worker in workers for each in worker.handlers).keys()
            self.counts = {
                "/": len((await self._sampler.read(MAX_AGE)).counts),
                "/handlers": len(handlers | self._history.runs(HOUR).keys()),
                "/sessions": len(workers),
                "/schedules": await self._schedules(),
                "/bulk": sum(job.ended is None for job in await self._server.jobs.newest_first()),
                "/audit": await self._server.audit.count(),
            }

    async def _schedules(self) -> int:
        access = self._server.access
        try:
            tube = (await access.tube(SCHEDULE_TUBE)).sync
            return len((await access.call(schedule_status.read_all, tube)).records)
        except NoSuchTube:
            access.forget(SCHEDULE_TUBE)
            return 0
