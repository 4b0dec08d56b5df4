"""What a worker has done so far, and how long its handlers take."""

from __future__ import annotations

import time

# A slower handler is believed at once, a faster one only when it goes on: prefetching too much holds others up.
_SLOWER = 0.5
_FASTER = 0.05


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
    """How long a handler takes, in seconds; leaning to the slow side."""

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean: float | None = None

    def forget(self) -> None:
        """It has become another one: the next run tells."""
        self.mean = None

    def note(self, seconds: float) -> None:
        """One more run. Racing threads may lose a note; it is an estimate."""
        mean = self.mean
        if mean is None:
            self.mean = seconds
        else:
            self.mean = mean + (seconds - mean) * (_SLOWER if seconds > mean else _FASTER)
