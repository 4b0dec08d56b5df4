"""The history of tubes and handlers over an hour and a day, kept in the store, so that it survives restarts.

Once a minute a server writes a record: the counters of the busiest tubes, and the runs of handlers since the last
record. Every ten minutes it writes a record that is kept for a day. Among several servers the first record counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from penstock.broker.notes import Notes
from penstock.core.results import Counts
from penstock.errors import PenstockError
from penstock.server.http.sampler import RATES, STATES, Point, read_sample, total
from penstock.server.http.store_access import Access
from penstock.worker.report import HandlerRuns, WorkerReport, read_reports, worker_notes
from penstock.worker.worker_stats import Runs

log = logging.getLogger("penstock")

MINUTE = 60
# Minutes between records that are kept for a day.
LONG = 10
HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
# Tubes and handlers in one record.
MAX_TUBES = 200
MAX_HANDLERS = 200
_FIELDS = (*STATES, *RATES)

Handler = tuple[str, str]  # its name and its tube


class HistoryRecord(msgspec.Struct, frozen=True):
    """One record: the counters at a time, and the runs since the previous record."""

    at: int
    total: list[int]
    tubes: dict[str, list[int]]
    runs: list[HandlerRuns]


class History:
    """Reads and writes the records, and keeps a copy in memory."""

    def __init__(self, access: Access) -> None:
        self._access = access
        runtime = access.broker.sync.runtime
        self._notes = Notes(runtime, "history", HOUR // MINUTE + DAY // (MINUTE * LONG) + 20)
        self._workers = worker_notes(runtime)
        self._minutes: deque[HistoryRecord] = deque(maxlen=HOUR // MINUTE + 1)
        self._tens: deque[HistoryRecord] = deque(maxlen=DAY // (MINUTE * LONG) + 1)
        self._counted: dict[str, dict[Handler, Runs]] = {}  # worker id -> the runs that are already in records
        self._last: dict[str, Counts] = {}

    async def run(self) -> None:
        """Read the stored records, then write one every minute, until cancelled."""
        loaded = False
        while True:
            try:
                if not loaded:
                    await self.load()
                    loaded = True
                await asyncio.sleep(MINUTE - time.time() % MINUTE)
                await self.note(int(time.time()) // MINUTE)
            except PenstockError as error:
                log.warning("could not write the history (%s); retrying in a minute", error)
                if not loaded:
                    await asyncio.sleep(MINUTE)

    async def note(self, minute: int) -> None:
        """Write the record of this minute, and every tenth minute the one that is kept for a day."""
        counts = (await self._access.call(read_sample, self._access.broker.sync.runtime)).counts
        slot = await self._access.call(self._write_minute, minute, counts)
        _append(self._minutes, [slot])
        if minute % LONG == 0:
            _append(self._tens, [await self._access.call(self._write_ten, minute, slot)])

    async def load(self) -> None:
        """Read the stored records."""
        slots: dict[str, list[HistoryRecord]] = {"minute": [], "ten": []}
        for key, value in (await self._access.call(self._notes.read)).items():
            try:
                slots[key.partition(" ")[0]].append(msgspec.convert(value, HistoryRecord))
            except (KeyError, msgspec.ValidationError):  # written by another version
                continue
        _append(self._minutes, slots["minute"])
        _append(self._tens, slots["ten"])

    def _write_minute(self, minute: int, counts: dict[str, Counts]) -> HistoryRecord:
        at = minute * MINUTE
        # First the tubes in which something happened, then those with the most tasks.
        names = sorted(counts, key=lambda name: (counts[name] == self._last.get(name), -counts[name].stored))
        self._last = counts
        tubes = {name: _numbers(counts[name]) for name in names[:MAX_TUBES]}
        slot = HistoryRecord(at, _numbers(total(counts)), tubes, self._new_runs(at))
        return self._keep(f"minute {minute}", slot, HOUR + 2 * MINUTE)

    def _write_ten(self, minute: int, slot: HistoryRecord) -> HistoryRecord:
        recent = [each for each in self._minutes if slot.at - LONG * MINUTE < each.at <= slot.at]
        runs = summed(each for minute in recent for each in minute.runs)
        long = msgspec.structs.replace(slot, runs=[HandlerRuns(*key, value) for key, value in runs.items()])
        return self._keep(f"ten {minute}", long, DAY + 2 * LONG * MINUTE)

    def _keep(self, key: str, slot: HistoryRecord, seconds: float) -> HistoryRecord:
        return msgspec.convert(self._notes.write(key, msgspec.to_builtins(slot), seconds, keep=True), HistoryRecord)

    def _new_runs(self, at: int) -> list[HandlerRuns]:
        """The runs of handlers since the last record.

        The earlier runs of a worker that this server sees for the first time may already be in a record of another
        server, or of this one before a restart, so they are not counted.
        """
        before, self._counted = self._counted, {}
        new: dict[Handler, Runs] = {}
        for report in read_reports(self._workers):
            known = before.get(report.id)
            now = self._counted[report.id] = {(each.handler, each.tube): each.runs for each in report.handlers}
            if known is None and report.since < at - 2 * MINUTE:
                continue
            for key, runs in now.items():
                new.setdefault(key, Runs()).add(runs.since((known or {}).get(key)))
        busiest = sorted(new.items(), key=lambda item: -item[1].count)[:MAX_HANDLERS]
        return [HandlerRuns(*key, runs) for key, runs in busiest if runs.count]

    def points(self, name: str | None, span: int) -> list[Point]:
        """The points of one tube, or of all together: tasks by state, and rates between one record and the next."""
        slots = self._tens if span == DAY else self._minutes
        rows = [(slot.at, slot.total if name is None else slot.tubes.get(name)) for slot in slots]
        known = [(at, row) for at, row in rows if row is not None and at > time.time() - span]
        return [_point(*before, *now) for before, now in pairwise(known)]

    async def workers(self) -> list[WorkerReport]:
        """The workers that are running, by their reports."""
        return [report for report in await self._access.call(read_reports, self._workers) if not report.stopped]

    def runs(self, span: int) -> dict[Handler, Runs]:
        """The runs of each handler in the last hour or day."""
        slots = self._tens if span == DAY else self._minutes
        since = time.time() - span
        return summed(each for slot in slots if slot.at > since for each in slot.runs)


def summed(runs: Iterable[HandlerRuns]) -> dict[Handler, Runs]:
    """Add up the runs of each handler."""
    found: dict[Handler, Runs] = {}
    for each in runs:
        found.setdefault((each.handler, each.tube), Runs()).add(each.runs)
    return found


def _append(kept: deque[HistoryRecord], slots: Iterable[HistoryRecord]) -> None:
    """Append the records that are newer than the last one."""
    for slot in sorted(slots, key=lambda slot: slot.at):
        if not kept or slot.at > kept[-1].at:
            kept.append(slot)


def _numbers(counts: Counts) -> list[int]:
    return [getattr(counts, field) for field in _FIELDS]


def _point(then: int, before: list[int], at: int, now: list[int]) -> Point:
    states = len(STATES)
    rates = (round(max(0, new - old) / (at - then), 2) for old, new in zip(before[states:], now[states:], strict=True))
    return (at, *now[:states], *rates)
