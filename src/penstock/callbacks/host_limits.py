"""Limits the concurrent calls per host, so that a slow host does not block the others. Knows no sockets.

Calls above a host's limit are parked, up to the same number again. If parked calls wait too long, the host counts as
slow: then more tasks are taken every second, to find those of other hosts behind them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

# Seconds after which a host with parked calls counts as slow.
SLOW_SECONDS = 1.0
# Tasks taken per second to look past those of a slow host; they are released again if they are for the same host.
EXTRA_PER_SECOND = 20


class Hosts(Generic[T]):
    """Counts calls by host. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: dict[str, int] = {}
        self._parked: dict[str, deque[tuple[float, T]]] = {}
        self._window = 0.0
        self._extra = 0
        self._lock = threading.Lock()

    def full(self, host: str) -> bool:
        """Whether one more call would exceed the host's limit."""
        return self._running.get(host, 0) >= self._limit

    def begin(self, host: str) -> None:
        """Count a call that begins."""
        with self._lock:
            self._running[host] = self._running.get(host, 0) + 1

    def end(self, host: str) -> None:
        """Count a call that ended."""
        with self._lock:
            self._running[host] -= 1
            if not self._running[host]:
                del self._running[host]

    def unpark(self, host: str) -> T | None:
        """The longest-parked call of the host, if any."""
        with self._lock:
            parked = self._parked.get(host)
            call = parked.popleft()[1] if parked else None
            if not parked:
                self._parked.pop(host, None)
            return call

    def park(self, host: str, call: T, now: float) -> bool:
        """Park a call until its host has capacity. Returns False if too many are parked."""
        with self._lock:
            parked = self._parked.setdefault(host, deque())
            if len(parked) < self._limit:
                parked.append((now, call))
                return True
            self._extra += 1
            return False

    def room(self, now: float) -> int:
        """How many tasks may be taken now: what the busiest host allows, because all of them may be for it."""
        with self._lock:
            if now - self._window >= 1:
                self._window, self._extra = now, 0
            used = [count + len(self._parked.get(host, ())) for host, count in self._running.items()]
            left = 2 * self._limit - max(used, default=0)
            slow = any(parked and now - parked[0][0] > SLOW_SECONDS for parked in self._parked.values())
            return left + (max(0, EXTRA_PER_SECOND - self._extra) if slow else 0)

    def clear(self) -> None:
        """Forget all parked calls."""
        with self._lock:
            self._parked.clear()
