"""A clock that moves only by `advance`, so that ttl, ttr and delay are tested without sleeping."""

from __future__ import annotations

import threading


class Clock:
    """Give it to `penstock.connect(url, clock=clock)`; every broker on that store should share it."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._ms = round(start * 1000)

    def __call__(self) -> int:
        """Milliseconds since the epoch, as a store's clock counts."""
        return self._ms

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return self._ms / 1000

    def advance(self, seconds: float) -> None:
        """Move the clock by some seconds; negative ones set it back."""
        with self._lock:
            self._ms += round(seconds * 1000)
