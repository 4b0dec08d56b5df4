"""The counters of a worker, and measurements of its handlers."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import TYPE_CHECKING

import msgspec

from penstock.app.current import Snooze

if TYPE_CHECKING:
    from penstock.worker.running_task import RunningTask
    from penstock.worker.worker_metrics import Meter

# How far one run moves an estimate: a slow run further than a fast one, because prefetching too much starves others.
_SLOWER = 0.5
_FASTER = 0.1


# Upper bounds of the histogram buckets for run times, in seconds; the last bucket has none.
BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)


class Runs(msgspec.Struct):
    """How often a handler ran and failed, and how long it took, in seconds."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def note(self, seconds: float, *, failed: bool) -> None:
        """Count one run."""
        self.count += 1
        self.failed += failed
        self.seconds += seconds
        if seconds > self.longest:
            self.longest = seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1

    def add(self, more: Runs) -> None:
        """Add the runs of another worker or period."""
        self.count += more.count
        self.failed += more.failed
        self.seconds += more.seconds
        self.longest = max(self.longest, more.longest)
        self.buckets = [sum(pair) for pair in zip(self.buckets, more.buckets, strict=True)]

    def since(self, before: Runs | None) -> Runs:
        """The runs since an earlier state. The longest is estimated by its bucket, unless it is the longest of all."""
        if before is None:
            return self
        buckets = [new - old for new, old in zip(self.buckets, before.buckets, strict=True)]
        new = Runs(self.count - before.count, self.failed - before.failed, self.seconds - before.seconds, 0.0, buckets)
        new.longest = self.longest if self.longest > before.longest else min(self.longest, new.percentile(1.0))
        return new

    @property
    def mean(self) -> float:
        """The mean time of a run."""
        return self.seconds / self.count if self.count else 0.0

    def percentile(self, share: float) -> float:
        """The upper bound of the bucket that contains this percentile of the run times."""
        wanted, seen = share * self.count, 0
        for end, count in zip((*BUCKETS, inf), self.buckets, strict=True):
            seen += count
            if count and seen >= wanted:
                return min(end, self.longest) if self.longest else end
        return self.longest


class WorkerStats:
    """Counters for display. When two threads count at once, one may be missed."""

    def __init__(self) -> None:
        self.taken = 0
        self.done = 0
        self.failed = 0
        self.retried = 0
        self.buried = 0
        self.released = 0
        self.dropped = 0
        self.lost = 0
        self.stuck = 0
        #: The runs by handler and tube.
        self.runs: dict[tuple[str, str], Runs] = {}
        #: Counts the same by handler and tube, if metrics are served.
        self.meter: Meter | None = None

    def count(self, what: str, item: RunningTask) -> None:
        """Increment the counter of how a task ended."""
        setattr(self, what, getattr(self, what) + 1)
        if self.meter is not None:
            self.meter.count(what, item)

    def ran(self, item: RunningTask, error: BaseException | None, seconds: float) -> None:
        """Count a run of a handler. Runs that the worker stopped do not count; a Snooze is not a failure."""
        if item.handler is None or item.stopped:
            return
        key = item.handler.name, item.tube.name
        runs = self.runs.get(key)
        if runs is None:
            runs = self.runs.setdefault(key, Runs())
        runs.note(seconds, failed=error is not None and not isinstance(error, Snooze))
        if self.meter is not None:
            self.meter.ran(item, seconds)

    def facts(self) -> dict[str, int]:
        """The counters by name."""
        return {name: value for name, value in vars(self).items() if name not in ("meter", "runs")}


class Throughput:
    """Estimates how long a handler takes and how many tasks finish per second under load, on the pessimistic side.

    Concurrent calls of `note` may lose one, which is acceptable for estimates.
    """

    __slots__ = ("_at", "_finished", "_seen", "mean", "rate")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.rate = 0.0
        self._finished = 0
        self._at, self._seen = 0.0, 0

    def forget(self) -> None:
        """Forget all measurements."""
        self.mean = None
        self.rate = 0.0

    def note(self, seconds: float) -> None:
        """Record one run."""
        self._finished += 1
        self.mean = seconds if self.mean is None else _smoothed(self.mean, seconds, slower=seconds > self.mean)

    def begin(self, now: float) -> None:
        """Measure the rate from now on, because there was no work before."""
        self._at, self._seen = now, self._finished

    def update(self, now: float) -> None:
        """Update the rate with the runs since the last update."""
        count, seconds = self._finished - self._seen, now - self._at
        if count and seconds > 0:
            rate = count / seconds
            self.rate = _smoothed(self.rate, rate, slower=rate < self.rate) if self.rate else rate
            self.begin(now)


def _smoothed(old: float, new: float, *, slower: bool) -> float:
    return old + (new - old) * (_SLOWER if slower else _FASTER)
