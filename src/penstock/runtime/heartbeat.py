"""The one background thread of a broker: keeps its sessions alive and wakes its waiting callers.

It runs only while the broker has a session, looks for changes of other processes only while someone waits,
and does no work of its own on tasks: it beats, reaps dead peers, and hints waiters.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from penstock.core.results import LAPSE_MS
from penstock.errors import PenstockError
from penstock.store.contract import Store
from penstock.store.wake import Wake

log = logging.getLogger("penstock")

# Beat at a third of the lapse: two beats may be lost (one slow query, one reconnect) before others may
# end the session.
BEAT_SECONDS = LAPSE_MS / 1000 / 3
# A peer killed on this host is noticed within this, without a query.
REAP_SECONDS = 0.4
# Behind every notification: covers a lost one.
SCAN_SECONDS = 1.0
# After an error of the store, so that a store that is away is not hammered.
RETRY_SECONDS = 1.0


class Kept(Protocol):
    """What the keeper needs of its broker."""

    closed: bool

    @property
    def store(self) -> Store: ...
    def beat(self) -> None: ...
    def reap(self) -> bool: ...
    def hint_waiters(self) -> None: ...
    def waiters(self) -> int: ...
    def next_due(self) -> float | None: ...
    def due_passed(self, now: float) -> None: ...


class Keeper:
    """Starts when first needed and stops with the broker."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._wake = Wake()
        self._wake.on_news = kept.hint_waiters
        self._watching = False  # asleep until `_until`, with an eye on what others change
        self._until = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Run, if it does not yet."""
        with self._lock:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="penstock-keeper", daemon=True)
                self._thread.start()

    def nudge(self, due: float | None) -> None:
        """Someone waits now, until that moment if there is one: wake it, unless its sleep was planned for that."""
        if not self._watching or (due is not None and due < self._until):
            self._wake.set()

    def stop(self) -> None:
        """End the thread and wait for it."""
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
        while not self._stopping:
            try:
                now = time.monotonic()
                if now >= beat:
                    beat = now + BEAT_SECONDS
                    self._kept.beat()
                if now >= reap:
                    reap = now + REAP_SECONDS
                    self._kept.reap()
                if now >= scan:
                    scan = now + SCAN_SECONDS
                    self._kept.hint_waiters()
                self._kept.due_passed(now)
                self._sleep(min(beat, reap, scan))
            except (PenstockError, OSError) as error:
                if self._kept.closed:
                    return
                log.warning("the store cannot be looked after now (%s); trying again", error)
                self._wake.wait(RETRY_SECONDS)

    def _sleep(self, until: float) -> None:
        due = self._kept.next_due()
        until = until if due is None else min(until, due)
        waiting = self._kept.waiters() > 0
        # From here on nudges are judged by this plan; whoever came before it was made has set the wake-up.
        self._until, self._watching = until, waiting
        try:
            if self._kept.store.wait(self._wake, until - time.monotonic(), watch=waiting):
                self._kept.hint_waiters()
        finally:
            self._watching = False
        self._wake.clear()
