"""What a worker has done so far, and how long its handlers take."""

from __future__ import annotations

import time

# A slower handler is believed at once, a faster one only when it goes on: prefetching too much holds others up.
_SLOWER = 0.5
_FASTER = 0.1


class Tally:
    """Counts for people. Where two threads count the same at once, one may be missed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.taken = 0
        self.done = 0
        self.retried = 0
        self.buried = 0
        self.released = 0
        self.dropped = 0
        self.lost = 0

    def count(self, what: str) -> None:
        """One more of these."""
        setattr(self, what, getattr(self, what) + 1)

    def facts(self) -> dict[str, int]:
        """The counts, by name."""
        return {name: value for name, value in vars(self).items() if name != "began"}


class Pace:
    """How long a handler takes, and how many are finished a second while there is work; leaning to the slow side.

    Racing threads may lose a note; these are estimates.
    """

    __slots__ = ("_at", "_finished", "_seen", "mean", "rate")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.rate = 0.0
        self._finished = 0
        self._at, self._seen = 0.0, 0

    def forget(self) -> None:
        """It has become another one: the next runs tell."""
        self.mean = None
        self.rate = 0.0

    def note(self, seconds: float) -> None:
        """One more run."""
        self._finished += 1
        self.mean = seconds if self.mean is None else _leaning(self.mean, seconds, slower=seconds > self.mean)

    def begin(self, now: float) -> None:
        """From now on there is work: time before this says nothing about the rate."""
        self._at, self._seen = now, self._finished

    def look(self, now: float) -> None:
        """Take what was finished since the last look for the rate."""
        count, seconds = self._finished - self._seen, now - self._at
        if count and seconds > 0:
            rate = count / seconds
            self.rate = _leaning(self.rate, rate, slower=rate < self.rate) if self.rate else rate
            self.begin(now)


def _leaning(old: float, new: float, *, slower: bool) -> float:
    return old + (new - old) * (_SLOWER if slower else _FASTER)
