"""Counters of a worker, and how fast its handlers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.worker.metrics import Meter
    from penstock.worker.running_task import RunningTask

# Slower handlers are believed at once, faster ones only gradually: prefetching too much starves other workers.
_SLOWER = 0.5
_FASTER = 0.1


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
        #: Counts the same by handler and tube, where metrics are served.
        self.meter: Meter | None = None

    def count(self, what: str, item: RunningTask) -> None:
        """Increment the counter of how a task ended."""
        setattr(self, what, getattr(self, what) + 1)
        if self.meter is not None:
            self.meter.count(what, item)

    def facts(self) -> dict[str, int]:
        """The counters by name."""
        return {name: value for name, value in vars(self).items() if name != "meter"}


class Throughput:
    """Estimates how long a handler takes and how many tasks finish per second under load, on the pessimistic side.

    Racing threads may lose a note; these are estimates.
    """

    __slots__ = ("_at", "_finished", "_seen", "mean", "rate")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.rate = 0.0
        self._finished = 0
        self._at, self._seen = 0.0, 0

    def forget(self) -> None:
        """Start measuring again."""
        self.mean = None
        self.rate = 0.0

    def note(self, seconds: float) -> None:
        """Record one run."""
        self._finished += 1
        self.mean = seconds if self.mean is None else _leaning(self.mean, seconds, slower=seconds > self.mean)

    def begin(self, now: float) -> None:
        """Start measuring the rate now, because there was no work before."""
        self._at, self._seen = now, self._finished

    def look(self, now: float) -> None:
        """Update the rate with what was finished since the last update."""
        count, seconds = self._finished - self._seen, now - self._at
        if count and seconds > 0:
            rate = count / seconds
            self.rate = _leaning(self.rate, rate, slower=rate < self.rate) if self.rate else rate
            self.begin(now)


def _leaning(old: float, new: float, *, slower: bool) -> float:
    return old + (new - old) * (_SLOWER if slower else _FASTER)
