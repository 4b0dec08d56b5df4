"""Sleep until another process commits: inotify reports writes to the log, polls find the commit that they belong to.

A commit becomes visible a moment after its last write. So after a write of another process, the file's change counter
is polled, often at first and then less often. Then polling stops until inotify reports the next write. Without inotify,
polling never stops.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from penstock.system.forks import reset_in_child
from penstock.system.wake import READABLE, Selector, Wake, watch_writes

# The shortest and longest pause between polls, in seconds; a taker is woken within the longest. A poll costs some
# 170 µs on an idle machine.
_FIRST_LOOK = 0.001
_LAST_LOOK = 0.016


class Watch:
    """Watches one store's file, for its background thread."""

    def __init__(self, path: str, version: Callable[[], int]) -> None:
        self._log = f"{os.path.realpath(path)}-wal"  # follow links: the log is next to the real file
        self._look = version
        self._seen = 0
        self._pause = _FIRST_LOOK
        self._fd: int | None = None
        self._no_inotify = not sys.platform.startswith("linux")
        reset_in_child(self)

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Sleep. Returns True once another connection has committed; False if woken, or if the time is up."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            # inotify is asked from the first poll on, so that no write comes between the last poll and the sleep.
            if isinstance(wake, Wake) and self._sees_writes() and self._pause >= _LAST_LOOK:
                woken = self._sleep(wake, left)
            else:
                woken = wake.wait(min(left, self._pause))
            if woken:
                return False
            if (version := self._look()) != self._seen:
                self._seen, self._pause = version, _FIRST_LOOK
                return True
            self._pause = min(self._pause * 1.2, _LAST_LOOK)
        return False

    def close(self) -> None:
        """Close the inotify descriptor, and do not open another."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._no_inotify = None, True

    def after_fork(self) -> None:
        """Close the parent's descriptor in a forked child: reading it would consume the parent's events."""
        no_inotify = self._no_inotify
        self.close()
        self._no_inotify = no_inotify

    def _sees_writes(self) -> bool:
        """Whether inotify reports writes; starts it if needed."""
        if not self._no_inotify and self._fd is None:
            self._fd = watch_writes(self._log)
            self._no_inotify = self._fd is None
        return not self._no_inotify

    def _sleep(self, wake: Wake, seconds: float) -> bool:
        """Sleep until a process writes. Returns True if woken."""
        assert self._fd is not None
        began = time.monotonic()
        selector = Selector()
        selector.register(wake.fileno(), READABLE)
        selector.register(self._fd, READABLE)
        ready = {key.fd for key, _ in selector.select(seconds)}
        if self._fd in ready:
            with suppress(BlockingIOError):
                os.read(self._fd, 4096)
            if (slept := time.monotonic() - began) < _LAST_LOOK:  # writes are frequent, perhaps our own: poll rarely
                return wake.wait(min(seconds, _LAST_LOOK) - slept)
            self._pause = _FIRST_LOOK
        return wake.fileno() in ready
