"""Waiting for changes of other processes: MySQL cannot notify, so one row is looked at, while work is about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Between two looks, and for how long after the last change they go on.
LOOK_SECONDS = 0.02
ACTIVE_SECONDS = 2.0
# Between two looks when nothing has happened for that long: once for each of the keeper's scans.
IDLE_SECONDS = 1.0


class Watch:
    """Sleeps for the keeper. `look` answers something that differs after every change."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._seen: object = None
        self._looked = 0.0
        self._active_until = 0.0
        self._watching = False

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """As the contract's `wait`."""
        if watch and not self._watching:
            # Whoever begins to wait has just found the tube empty: its work may come at once.
            self._changed()
            self._active_until = time.monotonic() + ACTIVE_SECONDS
        self._watching = watch
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            pause = min(left, self._next_look() - time.monotonic()) if watch else left
            if wake.wait(max(pause, 0)):
                return False
            if watch and time.monotonic() >= self._next_look() and self._changed():
                return True
        return False

    def _next_look(self) -> float:
        return self._looked + (LOOK_SECONDS if self._looked < self._active_until else IDLE_SECONDS)

    def _changed(self) -> bool:
        seen = self._look()
        self._looked = time.monotonic()
        if seen == self._seen:
            return False
        self._seen = seen
        self._active_until = self._looked + ACTIVE_SECONDS
        return True
