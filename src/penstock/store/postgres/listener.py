"""Notifications of other processes: a thread with a connection of its own, while somebody watches."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from uuid import uuid4

import psycopg

from penstock.errors import PenstockError
from penstock.store.forks import reset_in_child
from penstock.store.postgres.connection import Connections
from penstock.store.wake import tell

log = logging.getLogger("penstock")

# The thread ends when nobody watched for so long.
UNWATCHED_SECONDS = 20.0
# After a notification its sender is silent for a while (`Teller`): so much later a second look finds what came then.
SECOND_LOOK_SECONDS = 0.025
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0


class _Process:
    """This process's name in notifications, another one after a fork."""

    def __init__(self) -> None:
        self.after_fork()
        reset_in_child(self)

    def after_fork(self) -> None:
        self.name = f"{os.getpid()}-{uuid4().hex[:8]}"


PROCESS = _Process()


class Teller:
    """Whether the next call may notify: at most once in 10 ms by one broker, because each takes a global lock."""

    _SILENCE = 0.01

    def __init__(self, on: bool) -> None:
        self.on = on
        self._until = 0.0

    @property
    def name(self) -> str | None:
        """What a call is given: this process's name, or None when it must be silent."""
        return PROCESS.name if self.on and time.monotonic() >= self._until else None

    def told(self) -> None:
        """A call has notified."""
        self._until = time.monotonic() + self._SILENCE


class BoundTeller(Teller):
    """Of a caller's transaction: it notifies at the commit, when nobody here is left to wake this process's waiters.

    So these must hear it too. The server sends one of several equal ones, so that it needs no silence.
    """

    @property
    def name(self) -> str | None:
        """As of another process."""
        return f"{PROCESS.name}-bound" if self.on else None


class Listener:
    """Hints the waiters, or wakes `wait`, at a notification. What this process itself has sent is passed over."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._begin()
        reset_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ring: socket.socket | None = None
        self._wake: threading.Event | None = None
        self._heard = False
        self._closed = False
        self._watched = 0.0
        self._look_at: float | None = None

    after_fork = _begin

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """As the contract says."""
        if watch:
            self._watch(wake)
        look_at = self._look_at
        if look_at is not None:
            seconds = min(seconds, look_at - time.monotonic())
        if not self._heard:  # else the wake-up may have been cleared by whoever was awake when the news came
            wake.wait(max(seconds, 0))
        if look_at is not None and time.monotonic() >= look_at:
            self._heard = True
            if self._look_at == look_at:
                self._look_at = None
        # Also where nobody waited when this began: somebody may have begun to since.
        heard, self._heard = self._heard, False
        return heard

    def look_again(self) -> None:
        """Let `wait` return in a moment, as if it had heard something."""
        self._look_at = time.monotonic() + SECOND_LOOK_SECONDS
        if self._wake is not None:
            self._wake.set()

    def close(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            self._closed = True
            thread, ring = self._thread, self._ring
        if ring is not None:
            ring.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _watch(self, wake: threading.Event) -> None:
        with self._lock:
            self._wake = wake
            self._watched = time.monotonic()
            if self._thread is None and not self._closed:
                if self._ring is not None:
                    self._ring.close()
                self._ring, theirs = socket.socketpair()
                self._thread = threading.Thread(target=self._run, args=(theirs,), name="penstock-listener", daemon=True)
                self._thread.start()

    def _run(self, ring: socket.socket) -> None:
        pause = _FIRST_PAUSE
        with ring:
            while not self._over():
                try:
                    with self._connections.connect() as db:
                        db.execute(f"LISTEN {self._connections.location.channel}")
                        pause = _FIRST_PAUSE
                        self._hear()  # what was said while nobody listened
                        self._listen(db, ring)
                except (psycopg.Error, PenstockError) as error:
                    log.warning("notifications are interrupted (%s); listening again in %s s", error, pause)
                    select.select([ring], [], [], pause)
                    pause = min(pause * 2, _LAST_PAUSE)

    def _over(self) -> bool:
        """Whether to end: the store was closed, or nobody watches."""
        with self._lock:
            over = self._closed or time.monotonic() - self._watched > UNWATCHED_SECONDS
            if over:
                self._thread = None
            return over

    def _listen(self, db: psycopg.Connection, ring: socket.socket) -> None:
        second_look = False
        while not self._closed:
            timeout = SECOND_LOOK_SECONDS if second_look else UNWATCHED_SECONDS
            readable, _, _ = select.select([db.fileno(), ring.fileno()], [], [], timeout)
            if ring.fileno() in readable:
                return
            if not readable:
                if not second_look and time.monotonic() - self._watched > UNWATCHED_SECONDS:
                    return
                if second_look:
                    self._hear()
                second_look = False
            elif self._others(db):
                self._hear()
                second_look = True

    def _others(self, db: psycopg.Connection) -> bool:
        """Whether another process has sent what came in."""
        db.pgconn.consume_input()
        found = False
        while (notification := db.pgconn.notifies()) is not None:
            found = found or notification.extra.decode() != PROCESS.name
        return found

    def _hear(self) -> None:
        if tell(self._wake):
            return
        self._heard = True
        if self._wake is not None:
            self._wake.set()
