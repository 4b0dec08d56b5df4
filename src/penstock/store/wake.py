"""Ways to wake a waiting thread: sockets, an Event that can be polled like a socket (where the system has eventfd), and
notifications."""

from __future__ import annotations

import logging
import os
import random
import select
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("penstock")

#: poll() needs no file descriptor, unlike epoll. Windows has only select().
Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
READABLE, WRITABLE = selectors.EVENT_READ, selectors.EVENT_WRITE


def until_readable(fd: int) -> Callable[..., object]:
    """Return a function that waits until a descriptor is readable, at most for the milliseconds that it is given, and
    returns something true if it is. Much cheaper than a selector."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return poll.poll
    return lambda ms=None: select.select([fd], [], [], None if ms is None else ms / 1000)[0]


class Wake(threading.Event):
    """An Event with a file descriptor. Wake-ups are never lost; spurious ones can occur."""

    _fd: int | None = None
    #: Called by a background thread that is notified of a change elsewhere, so that takers are woken directly and not
    #: through the thread that sleeps on the event.
    on_notification: Callable[[], object] | None = None

    def fileno(self) -> int:
        """Return a descriptor that is readable while the event is set; it is created at first use."""
        if self._fd is None:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            if self.is_set():  # a later set() sees the descriptor
                os.eventfd_write(self._fd, 1)
        return self._fd

    def set(self) -> None:
        super().set()
        if self._fd is not None:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        if self._fd is not None:
            with suppress(BlockingIOError):
                os.eventfd_read(self._fd)
        super().clear()

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


# A receiver's thread ends if no caller has waited for this time.
LINGER_SECONDS = 20.0
# The longest pause before a receiver connects again: no longer than waiting calls sleep between two scans.
_PAUSE_SECONDS = 1.0


class Receiver(ABC):
    """Wakes waiters when other processes send notifications. A thread receives these while callers wait."""

    #: The name of the thread, and the errors after which it connects again.
    thread_name: str
    broken: tuple[type[Exception], ...]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state, as in a forked child, where the parent's thread does not exist."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sock: socket.socket | None = None
        self._closed = threading.Event()
        self._wake: threading.Event | None = None
        self._notified = False
        self._watched = 0.0

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """See `Store.wait`."""
        self._wake = wake
        if watch:
            self._watched = time.monotonic()
            self._start()
        # If a notification came before this call, its wake-up may have been cleared: do not sleep.
        if not self._notified:
            wake.wait(max(seconds, 0))
        # Even without `watch`: a call may have begun to wait since.
        notified, self._notified = self._notified, False
        return notified

    def close(self) -> None:
        """End the thread and its connection."""
        self._closed.set()
        with self._lock:
            thread = self._thread
            if self._sock is not None:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # ends a read in the thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def notify(self) -> None:
        """Let waiters look for what has changed."""
        if isinstance(self._wake, Wake) and self._wake.on_notification is not None:
            self._wake.on_notification()
            return
        self._notified = True
        if self._wake is not None:
            self._wake.set()

    # in the background thread

    @abstractmethod
    def receive(self) -> None:
        """Connect, call `connected`, and read notifications while `watched`."""

    def connected(self, sock: socket.socket) -> None:
        """Note that notifications arrive on this socket from now on. `receive` must close it."""
        with self._lock:
            self._sock = sock
        self.notify()  # earlier notifications were lost: check once

    @property
    def watched(self) -> bool:
        """Whether a caller has waited recently, and the store is open."""
        return not self._closed.is_set() and time.monotonic() - self._watched < LINGER_SECONDS

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._over():
            try:
                self.receive()
            except self.broken as error:
                if not self._closed.is_set():
                    log.warning("notifications are interrupted (%s); reconnecting", " ".join(str(error).split()))
                self._closed.wait(_PAUSE_SECONDS * random.random())
            finally:
                self._sock = None

    def _over(self) -> bool:
        """Return whether the thread must end; the next waiter starts another."""
        with self._lock:
            if self.watched:
                return False
            self._thread = None
            return True
