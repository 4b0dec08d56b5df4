"""The counts next to the links of the navigation, read at most every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.errors import NoSuchTube, PenstockError
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.http import views
from penstock.server.http.formatting import number
from penstock.server.http.history import HOUR, summed
from penstock.server.http.sampler import SHARE

log = logging.getLogger("penstock")

MAX_AGE = 5.0
# Groups and callbacks have no counter: their pages look through many tubes, so they are counted less often.
ROWS_AGE = 10.0


class Navigation:
    """The counts, by the path of their link; a link without a count has nothing to show."""

    def __init__(self, sources: views.Sources) -> None:
        self._sources = sources
        self._counts: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._read = 0.0
        self._wanted = asyncio.Event()

    @property
    def counts(self) -> dict[str, str]:
        """The counts that are not 0, as text. Of groups and callbacks, the rows that their pages show."""
        found = {path: number(count) for path, count in (self._counts | self._rows).items() if count}
        return found | {path: f"{views.MOST_ROWS}+" for path, count in self._rows.items() if count > views.MOST_ROWS}

    async def read(self) -> None:
        """Read the counters again if they are old."""
        self._wanted.set()
        if time.monotonic() - self._read > MAX_AGE:
            self._read = time.monotonic()
            server, history = self._sources.server, self._sources.history
            workers = await history.workers()
            handlers = summed(each for worker in workers for each in worker.handlers).keys()
            self._counts = {
                "/": len((await self._sources.sampler.read(MAX_AGE)).counts),
                "/handlers": len(handlers | history.runs(HOUR).keys()),
                "/sessions": len(workers),
                "/schedules": await self._schedules(),
                "/bulk": sum(job.ended is None for job in await server.jobs.newest_first()),
                "/audit": await server.audit_trail.count(),
            }

    async def run(self) -> None:
        """Count groups and callbacks while pages are requested, at most a tenth of the time, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            began = time.monotonic()
            try:
                await self.count_rows()
            except PenstockError as error:
                self._sources.server.failed(error)
                log.warning("could not count groups and callbacks (%s); retrying", error)
            await asyncio.sleep(max(ROWS_AGE, (time.monotonic() - began) * SHARE))

    async def count_rows(self) -> None:
        """Count what the pages of groups and callbacks would show now."""
        groups = await views.find_groups(self._sources, {})
        hosts = await views.find_callbacks(self._sources)
        self._rows = {"/groups": len(groups), "/callbacks": len(hosts)}

    async def _schedules(self) -> int:
        access = self._sources.access
        try:
            tube = (await access.tube(SCHEDULE_TUBE)).sync
            return len((await access.call(schedule_status.read_all, tube)).records)
        except NoSuchTube:
            access.forget(SCHEDULE_TUBE)
            return 0
