"""The notifications of other processes: a background thread receives them while callers wait."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress

from penstock.system.wake import Wake

log = logging.getLogger("penstock")

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
