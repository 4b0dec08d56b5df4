"""The one background thread of a broker: keeps its sessions alive and wakes its blocked callers.

It runs while the broker has a session, and watches for changes by other processes only while a caller is blocked. It
sends heartbeats, reaps dead peers, hints waiters, and takes turns with other brokers at driving the store's clock.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from penstock.engine.sessions import LAPSE_MS
from penstock.engine.store import Store
from penstock.errors import PenstockError
from penstock.system.wake import Wake

log = logging.getLogger("penstock")

# Heartbeat at a third of the lapse: two may be lost (one slow query, one reconnect) before others may end the session.
BEAT_SECONDS = LAPSE_MS / 1000 / 3
# A peer killed on this host is noticed within this time, without a query.
REAP_SECONDS = 0.4
# A scan besides notifications, in case one is lost.
SCAN_SECONDS = 1.0
# The pause after an error of the store, so that an unavailable store is not overloaded with retries.
RETRY_SECONDS = 1.0


class HeartbeatRuntime(Protocol):
    """What the heartbeat needs of its broker's runtime."""

    closed: bool

    @property
    def store(self) -> Store: ...
    def send_heartbeats(self) -> None: ...
    def reap(self) -> bool: ...
    def drive_clock(self) -> float: ...
    def hint_waiters(self) -> None: ...
    def topic_count(self) -> int: ...
    def next_deadline(self) -> float | None: ...
    def wake_due(self, now: float) -> None: ...


class Heartbeat:
    """The background thread of a broker. Starts when first needed, and stops with the broker."""

    def __init__(self, runtime: HeartbeatRuntime) -> None:
        self._runtime = runtime
        self._wake = Wake()
        self._wake.on_notification = runtime.hint_waiters
        self._watching = False  # asleep until `_until`, watching for changes of others
        self._until = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the thread, if it is not running."""
        with self._lock:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)
                self._thread.start()

    def nudge(self, deadline: float | None) -> None:
        """Wake the thread for a newly blocked caller and its deadline, unless its sleep allows for them."""
        if not self._watching or (deadline is not None and deadline < self._until):
            self._wake.set()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        beat = time.monotonic() + BEAT_SECONDS
        reap = time.monotonic() + REAP_SECONDS
        scan = time.monotonic() + SCAN_SECONDS
        drive = 0.0
        while not self._stopping:
            try:
                now = time.monotonic()
                if now >= beat:
                    beat = now + BEAT_SECONDS
                    self._runtime.send_heartbeats()
                if now >= reap:
                    reap = now + REAP_SECONDS
                    self._runtime.reap()
                if now >= scan:
                    scan = now + SCAN_SECONDS
                    self._runtime.hint_waiters()
                self._runtime.wake_due(now)
                if now >= drive:
                    drive = now + RETRY_SECONDS
                    drive = self._runtime.drive_clock()
                self._sleep(min(beat, reap, scan, drive))
            except (PenstockError, OSError) as error:
                if self._runtime.closed:
                    return
                log.warning("store maintenance failed (%s); retrying", error)
                self._wake.wait(RETRY_SECONDS)

    def _sleep(self, until: float) -> None:
        deadline = self._runtime.next_deadline()
        until = until if deadline is None else min(until, deadline)
        waiting = self._runtime.topic_count() > 0
        # From here on nudges are compared with this plan; a caller that came before has set the wake-up.
        self._until, self._watching = until, waiting
        try:
            if self._runtime.store.wait(self._wake, until - time.monotonic(), watch=waiting):
                self._runtime.hint_waiters()
        finally:
            self._watching = False
        self._wake.clear()
