"""Prometheus metrics of one worker, by handler and tube. Needs prometheus-client, from the extra `server`."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import PenstockError
from penstock.worker.worker_stats import BUCKETS

if TYPE_CHECKING:
    from penstock.worker.running_task import RunningTask
    from penstock.worker.worker import Worker


class Meter(Collector):
    """Collects the metrics of a worker: runs and results as they happen, gauges when the metrics are requested."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._registry = registry = CollectorRegistry()
        labels = ["handler", "tube"]
        self._seconds = Histogram(
            "penstock_handler_seconds", "How long handlers ran.", labels, buckets=BUCKETS, registry=registry
        )
        self._results = Counter(
            "penstock_handler_results", "Tasks by the result of their attempt.", [*labels, "result"], registry=registry
        )
        registry.register(self)
        ProcessCollector(registry=registry)
        worker.state.stats.meter = self

    def ran(self, item: RunningTask, seconds: float) -> None:
        """Record the duration of one run of a handler."""
        self._seconds.labels(*_labels(item)).observe(seconds)

    def count(self, result: str, item: RunningTask) -> None:
        """Count a task that was settled or whose lease was lost."""
        self._results.labels(*_labels(item), result).inc()

    def exposition(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The gauges that are read on request; those of the store are left out while it is unavailable."""
        state = self._worker.state
        running = collections.Counter(_labels(item) for item in list(state.in_flight.running.values()))
        flight = GaugeMetricFamily("penstock_handler_in_flight", "Handlers that run now.", labels=["handler", "tube"])
        for labels, count in running.items():
            flight.add_metric(labels, count)
        yield flight
        slots = self._worker.settings.concurrency
        yield GaugeMetricFamily("penstock_worker_slots", "Handlers that may run at once.", slots)
        yield GaugeMetricFamily("penstock_worker_stuck_threads", "Threads past their time limit.", state.stats.stuck)
        oldest = oldest_ready_family()
        tubes = [source.tube for source in self._worker.sources]
        with suppress(PenstockError):
            counters = tubes[0].runtime.store.counters([tube.stored for tube in tubes]) if tubes else {}
            for tube in tubes:
                if tube.stored.no in counters:
                    oldest.add_metric([tube.name], counters[tube.stored.no].waits)
        yield oldest


def oldest_ready_family() -> GaugeMetricFamily:
    """The gauge of the oldest ready task per tube, which workers and servers share."""
    text = "Seconds that the oldest ready task of a tube has waited since it was put or last taken."
    return GaugeMetricFamily("penstock_oldest_ready_seconds", text, labels=["tube"])


def _labels(item: RunningTask) -> tuple[str, str]:
    if item.handler is not None:
        return item.handler.name, item.tube.name
    return "(unknown)" if item.record.options.callback is None else "(callback)", item.tube.name
