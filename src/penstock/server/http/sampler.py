"""Samples the counters of all tubes while a page or stream needs them, for charts, events and metrics.

Everything due is applied first, so that all pages agree. Only counters are read, no tasks. Reading takes at most
a tenth of the time, so a thousand tubes on a remote store are read less often than three on this host.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.options import Tube as StoredTube
from penstock.core.results import Counts
from penstock.errors import PenstockError
from penstock.runtime.runtime import BrokerRuntime
from penstock.server.http.store_access import Access

log = logging.getLogger("penstock")

SECONDS = 1.0
SHARE = 10
# Seconds after the last request for a page until sampling stops.
IDLE_SECONDS = 120.0
# Points of a chart: two minutes at one a second.
POINTS = 120
# The most charts in memory; with more tubes, those that changed last have one.
MAX_CHARTS = 200

STATES = ("ready", "taken", "delayed", "buried")
RATES = ("put", "take", "ack", "release", "bury")


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of all tubes at one time; `at` is by the monotonic clock, `waits` as in `TubeCounters`."""

    at: float
    tubes: dict[str, StoredTube]
    counts: dict[str, Counts]
    paused: frozenset[str] = frozenset()
    waits: dict[str, float] = field(default_factory=dict)


Point = tuple[float, ...]  # seconds since the epoch, the states, the rates a second


class Sampler:
    """Samples regularly while pages or streams are open; `read` returns a recent sample, or takes one."""

    def __init__(self, access: Access, failed: Callable[[Exception], object]) -> None:
        self.sample = Sample(0.0, {}, {})
        self.totals: deque[Point] = deque(maxlen=POINTS)
        self.failed = failed
        self._access = access
        self._charts: OrderedDict[str, deque[Point]] = OrderedDict()
        self._listeners: set[Callable[[Sample, Sample], object]] = set()
        self._requested = 0.0
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()

    def note_request(self) -> None:
        """Keep sampling for a while, because a page was requested."""
        self._requested = time.monotonic()
        self._wake.set()

    def listen(self, listener: Callable[[Sample, Sample], object]) -> Callable[[], None]:
        """Call `listener` with the previous and the new sample after each one. Returns a function to unsubscribe."""
        self._listeners.add(listener)
        self._wake.set()
        return lambda: self._listeners.discard(listener)

    def chart(self, name: str) -> list[Point]:
        """The points of one tube over the last minutes."""
        return list(self._charts.get(name, ()))

    def rates(self, name: str) -> dict[str, float]:
        """The newest rates of one tube; empty until its counters were read twice."""
        chart = self._charts.get(name)
        return dict(zip(RATES, chart[-1][1 + len(STATES) :], strict=True)) if chart else {}

    async def read(self, max_age: float = SECONDS) -> Sample:
        """A sample that is at most `max_age` seconds old."""
        async with self._reading:
            if time.monotonic() - self.sample.at > max_age:
                await self._read()
        return self.sample

    async def run(self) -> None:
        """Sample while pages or streams are open, until cancelled."""
        while True:
            if not self._listeners and time.monotonic() - self._requested > IDLE_SECONDS:
                self._wake.clear()
                await self._wake.wait()
            began = time.monotonic()
            try:
                await self.read(SECONDS / 2)
            except PenstockError as error:
                self.failed(error)
                log.warning("could not read the counters (%s); retrying", error)
            took = time.monotonic() - began
            await asyncio.sleep(max(SECONDS - took, took * SHARE))

    async def _read(self) -> None:
        before = self.sample
        self.sample = now = await self._access.call(read_sample, self._access.broker.sync.runtime)
        self._access.names = {tube.no: name for name, tube in now.tubes.items()}
        if before.at:
            self._note(before, now)
        for listener in list(self._listeners):
            listener(before, now)

    def _note(self, before: Sample, now: Sample) -> None:
        seconds = max(now.at - before.at, 1e-3)
        self.totals.append(_point(total(before.counts), total(now.counts), seconds))
        for name, counts in now.counts.items():
            old = before.counts.get(name, counts)
            if old != counts or name in self._charts or len(self._charts) < MAX_CHARTS:
                chart = self._charts.setdefault(name, deque(maxlen=POINTS))
                chart.append(_point(old, counts, seconds))
                if old != counts:
                    self._charts.move_to_end(name)
        while len(self._charts) > MAX_CHARTS:
            self._charts.popitem(last=False)
        for name in self._charts.keys() - now.counts.keys():
            del self._charts[name]


def read_sample(runtime: BrokerRuntime) -> Sample:
    """Read the counters of every tube, in a few queries; a tube that is dropped during the read is left out."""
    runtime.apply_all_due()
    tubes = runtime.store.load_tubes()
    counters = runtime.store.counters(tubes)
    found = {tube.name: (tube, counters[tube.no]) for tube in tubes if tube.no in counters}
    return Sample(
        time.monotonic(),
        {name: tube for name, (tube, _) in found.items()},
        {name: each.counts for name, (_, each) in found.items()},
        frozenset(name for name, (_, each) in found.items() if each.paused),
        {name: each.waits for name, (_, each) in found.items()},
    )


def total(counts: dict[str, Counts]) -> Counts:
    """The counters of all tubes together."""
    fields = Counts.__struct_fields__
    return Counts(*(sum(getattr(each, name) for each in counts.values()) for name in fields))


def _point(before: Counts, now: Counts, seconds: float) -> Point:
    states = [getattr(now, state) for state in STATES]
    # A tube that was dropped in between lowers the totals: a rate is never negative.
    rates = [round(max(0, getattr(now, rate) - getattr(before, rate)) / seconds, 2) for rate in RATES]
    return (round(time.time(), 1), *states, *rates)
