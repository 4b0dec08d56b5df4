"""How many calls each host gets at once, so that a slow one does not hold up the others. Knows no sockets.

What is over a host's limit is parked, as much again as the limit. A host that leaves its parked ones waiting for longer
than a moment is slow: then some more tasks are taken every second, to look for those of other hosts behind its own.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

# After this a host with parked calls counts as slow.
SLOW_SECONDS = 1.0
# So many tasks are looked at in a second behind those of a slow host; they go back into their tube if they are its own.
LOOKS_PER_SECOND = 20


class Hosts(Generic[T]):
    """Counts calls by host. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[str, int] = {}
        self._parked: dict[str, deque[tuple[float, T]]] = {}
        self._window = 0.0
        self._looks = 0
        self._lock = threading.Lock()

    def full(self, host: str) -> bool:
        """Whether a call more would be over its limit."""
        return self._running.get(host, 0) >= self._limit

    def begin(self, host: str) -> None:
        """A call has begun."""
        with self._lock:
            self._running[host] = self._running.get(host, 0) + 1

    def end(self, host: str) -> None:
        """A call has ended."""
        with self._lock:
            self._running[host] -= 1
            if not self._running[host]:
                del self._running[host]

    def unpark(self, host: str) -> T | None:
        """What was parked for the host the longest, if anything is."""
        with self._lock:
            parked = self._parked.get(host)
            call = parked.popleft()[1] if parked else None
            if not parked:
                self._parked.pop(host, None)
            return call

    def park(self, host: str, call: T, now: float) -> bool:
        """Keep a call until its host has room; False when too many are kept for it."""
        with self._lock:
            parked = self._parked.setdefault(host, deque())
            if len(parked) < self._limit:
                parked.append((now, call))
                return True
            self._looks += 1
            return False

    def room(self, now: float) -> int:
        """How many tasks may be taken now: as many as the busiest host has room for, for they may all be its own."""
        with self._lock:
            if now - self._window >= 1:
                self._window, self._looks = now, 0
            used = [count + len(self._parked.get(host, ())) for host, count in self._running.items()]
            left = 2 * self._limit - max(used, default=0)
            slow = any(parked and now - parked[0][0] > SLOW_SECONDS for parked in self._parked.values())
            return left + (max(0, LOOKS_PER_SECOND - self._looks) if slow else 0)

    def clear(self) -> None:
        """Forget what is parked."""
        with self._lock:
            self._parked.clear()
