"""Sleep until another process writes: the kernel reports writes to the log (inotify), and polling does the rest.

A commit can be seen a moment after its last write, when it is on disk. So a write of another process begins a period
of polls of the file's change counter, frequent at first and then less and less. If nothing is written for a while, only
the kernel watches. Without inotify the polls continue.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from penstock.store.forks import reset_in_child
from penstock.store.wake import READABLE, Selector, Wake

# Seconds between polls; one costs some 170 µs on an idle machine. A taker is woken within the last.
_FIRST_LOOK = 0.001
_LAST_LOOK = 0.016
# A pause of this length or more is cut short by a write: a long transaction is many writes, and each would cost a poll.
_LONG_PAUSE = 0.002
# Polls continue for this long after a write. A commit that takes longer is found by the regular scan.
_ALERT_SECONDS = 0.5
_IN_MODIFY = 0x2
_IN_NONBLOCK, _IN_CLOEXEC = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_CLOEXEC", 0)


class Watch:
    """The watch of one store's file, for its background thread."""

    def __init__(self, path: str, version: Callable[[], int], writes: Callable[[], int]) -> None:
        self._log = f"{os.path.realpath(path)}-wal"  # a link is followed: the log lies beside the real file
        self._look = version
        self._writes = writes  # a number that changes before this process writes
        self._own = 0
        self._seen = 0
        self._pause = _FIRST_LOOK
        self._written = time.monotonic()
        self._fd: int | None = None
        self._no_inotify = not sys.platform.startswith("linux")
        reset_in_child(self)

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """True when another connection has committed; False when woken, or when the time is over."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if self._pause < _LONG_PAUSE or not isinstance(wake, Wake) or not self._sees_writes():
                woken = wake.wait(min(left, self._pause))
            else:
                alert = self._pause < _LAST_LOOK or time.monotonic() - self._written < _ALERT_SECONDS
                woken = self._sleep(wake, min(left, self._pause) if alert else left, alert=alert)
            if woken:
                return False
            if (version := self._look()) != self._seen:
                self._seen, self._pause = version, _FIRST_LOOK
                return True
            self._pause = min(self._pause * 1.2, _LAST_LOOK)
        return False

    def close(self) -> None:
        """Close the kernel's watch."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._no_inotify = None, True

    def after_fork(self) -> None:
        """Create a new watch: reading the parent's would consume its events."""
        no_inotify = self._no_inotify
        self.close()
        self._no_inotify = no_inotify

    def _sees_writes(self) -> bool:
        """Whether the kernel reports writes."""
        if not self._no_inotify and self._fd is None:
            self._fd = _watch_writes(self._log)
            self._no_inotify = self._fd is None
        return not self._no_inotify

    def _sleep(self, wake: Wake, seconds: float, *, alert: bool) -> bool:
        """Sleep until somebody writes or, while polls continue, another process does. True when woken."""
        assert self._fd is not None
        ends = time.monotonic() + seconds
        selector = Selector()
        selector.register(wake.fileno(), READABLE)
        selector.register(self._fd, READABLE)
        ready = {key.fd for key, _ in selector.select(seconds)}
        if self._fd in ready:
            with suppress(BlockingIOError):
                os.read(self._fd, 4096)
            own, self._own = self._own, self._writes()
            if alert and own != self._own:  # if others wrote as well, the next poll finds it
                return wake.wait(max(0.0, ends - time.monotonic()))
            self._written, self._pause = time.monotonic(), _FIRST_LOOK
        return wake.fileno() in ready


def _watch_writes(path: str) -> int | None:
    """A descriptor that is readable after a write; None if the kernel has no more of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) >= 0:
        return fd
    if fd >= 0:
        os.close(fd)
    return None
