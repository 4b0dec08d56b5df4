"""Prometheus metrics. The number of labels is bounded: further tubes are counted together as (other)."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.core.results import Counts, Event
from penstock.errors import StoreError
from penstock.server.http.sampler import STATES, Sample, total
from penstock.worker.worker_metrics import oldest_ready_family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_TUBES = 500
OTHER = "(other)"  # no tube can have this name
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)
# Leases that are remembered until their ack; both times are by this process's clock.
MAX_HELD = 100_000
CALLS = ("put", "take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")


class Histogram:
    """Durations in buckets, by tube number."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}
        self._sums: dict[int, float] = {}

    def add(self, tube: int, seconds: float) -> None:
        """Count a duration."""
        if tube not in self._counts and len(self._counts) >= MAX_TUBES:
            tube = -1
        counts = self._counts.setdefault(tube, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._sums[tube] = self._sums.get(tube, 0.0) + seconds

    def family(self, name: str, help: str, names: dict[int, str]) -> HistogramMetricFamily:
        """The Prometheus metric; tubes that are not in `names` were dropped and are left out."""
        family = HistogramMetricFamily(name, help, labels=["tube"])
        for tube, counts in self._counts.items():
            label = OTHER if tube == -1 else names.get(tube)
            if label is not None:
                below, buckets = 0, []
                for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                    below += count
                    buckets.append((bound, below))
                family.add_metric([label], buckets, self._sums[tube])
        return family


class Meter:
    """The measurements of this server: how long tasks waited and ran, and errors of the store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.put_to_take = Histogram()
        self.take_to_ack = Histogram()
        self.store_errors: Counter[str] = Counter()
        self._clock = clock
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[int, int], float] = OrderedDict()

    def tap(self, events: Sequence[Event]) -> None:
        """Measure task events of this server. Safe from any thread."""
        with self._lock:
            now = self._clock()
            for event in events:
                if event.name == "take":
                    self._taken(event, now)
                elif event.name == "ack":
                    since = self._held.pop((event.tube, event.record.id), None)
                    if since is not None:
                        self.take_to_ack.add(event.tube, now - since)

    def _taken(self, event: Event, now: float) -> None:
        record = event.record
        if record.attempts == 1 and record.taken is not None:  # only first attempts: retries waited for a delay
            self.put_to_take.add(event.tube, max(0, record.taken - record.created) / 1000)
        self._held[event.tube, record.id] = now
        if len(self._held) > MAX_HELD:
            self._held.popitem(last=False)

    def failed(self, error: Exception) -> None:
        """Count an error that a caller received, if it is a StoreError."""
        if isinstance(error, StoreError):
            self.store_errors[type(error).__name__] += 1


class _Snapshot(Collector):
    def __init__(self, sample: Sample, sessions: int, meter: Meter) -> None:
        self._sample = sample
        self._sessions = sessions
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        counts = _bounded(self._sample.counts)
        tasks = GaugeMetricFamily("penstock_tasks", "Tasks in a tube, by state.", labels=["tube", "state"])
        done = CounterMetricFamily("penstock_done", "Tasks that have left a tube.", labels=["tube"])
        calls = CounterMetricFamily(
            "penstock_calls", "Tasks that each verb or deadline was applied to.", labels=["tube", "call"]
        )
        for name, each in counts.items():
            for state in STATES:
                tasks.add_metric([name, state], getattr(each, state))
            done.add_metric([name], each.done)
            for call in CALLS:
                calls.add_metric([name, call], getattr(each, call))
        oldest = oldest_ready_family()
        for name, seconds in list(self._sample.waits.items())[:MAX_TUBES]:
            oldest.add_metric([name], seconds)
        yield from (tasks, done, calls, oldest)
        yield GaugeMetricFamily("penstock_tubes", "Tubes of the store.", len(self._sample.counts))
        yield GaugeMetricFamily("penstock_sessions", "Live sessions of the store.", self._sessions)
        failures = CounterMetricFamily("penstock_store_errors", "Calls that failed at the store.", labels=["error"])
        for name, count in self._meter.store_errors.items():
            failures.add_metric([name], count)
        yield failures
        names = {tube.no: name for name, tube in self._sample.tubes.items()}
        waited = "Time from put to first take, for takes through this server."
        yield self._meter.put_to_take.family("penstock_put_to_take_seconds", waited, names)
        worked = "Time from take to ack, both through this server."
        yield self._meter.take_to_ack.family("penstock_take_to_ack_seconds", worked, names)


def _bounded(counts: dict[str, Counts]) -> dict[str, Counts]:
    names = list(counts)
    kept = {name: counts[name] for name in names[:MAX_TUBES]}
    if len(names) > MAX_TUBES:
        kept[OTHER] = total({name: counts[name] for name in names[MAX_TUBES:]})
    return kept


def exposition(sample: Sample, sessions: int, meter: Meter) -> bytes:
    """The metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(sample, sessions, meter))
    return generate_latest(registry)
