"""A clock that moves only by `advance`, so that ttl, ttr and delay are tested without sleeping."""

from __future__ import annotations

import threading


class Clock:
    """A clock for `penstock.connect(url, clock=clock)`; all brokers on the same store should share it."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._ms = round(start * 1000)

    def __call__(self) -> int:
        """Milliseconds since the epoch, as a store's clock counts."""
        return self._ms

    @property
    def seconds(self) -> float:
        """Seconds since the epoch."""
        return self._ms / 1000

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`, or back if negative."""
        with self._lock:
            self._ms += round(seconds * 1000)
