"""Notifications between processes: when to send them, and a thread that receives them while a caller waits."""

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
from penstock.store.postgres.postgres_connection import PostgresServer
from penstock.store.wake import notify

log = logging.getLogger("penstock")

# The thread ends if no caller has waited for this time.
UNWATCHED_SECONDS = 20.0
# After a notification its sender is silent for a while (`Notifier`). Waiters retry once more after this time, and find
# what the sender did meanwhile.
SECOND_LOOK_SECONDS = 0.025
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0


_PROGRAM = uuid4().hex[:8]


def this_process() -> str:
    """Return this process's name in notifications. It differs after a fork."""
    return f"{os.getpid()}-{_PROGRAM}"


class Notifier:
    """Limits one broker to a notification every 10 ms, because each notification takes a global lock."""

    _PAUSE_SECONDS = 0.01

    def __init__(self, server: PostgresServer) -> None:
        self._on, self._bound = server.location.notify, server.bound
        self._until = 0.0

    @property
    def name(self) -> str | None:
        """The sender's name for a notification, or None within the pause.

        Notifications in a caller's transaction are sent at its commit, and this process must receive them, too, so they
        have another name. They need no pause: the server drops duplicates within a transaction.
        """
        if self._on and self._bound:
            return f"{this_process()}-bound"
        return this_process() if self._on and time.monotonic() >= self._until else None

    def sent(self) -> None:
        """Record that a call has sent a notification."""
        self._until = time.monotonic() + self._PAUSE_SECONDS


class Listener:
    """Wakes waiters when another process sends a notification."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.after_fork()
        reset_in_child(self)

    def after_fork(self) -> None:
        """Start without a background thread."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop: socket.socket | None = None  # closed to end the thread
        self._wake: threading.Event | None = None
        self._notified = False
        self._closed = False
        self._watched = 0.0
        self._look_at: float | None = None

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """See `Store.wait`."""
        if watch:
            self._watch(wake)
        look_at = self._look_at
        if look_at is not None:
            seconds = min(seconds, look_at - time.monotonic())
        if not self._notified:  # otherwise a thread that was awake may have cleared the event
            wake.wait(max(seconds, 0))
        if look_at is not None and time.monotonic() >= look_at:
            self._notified = True
            if self._look_at == look_at:
                self._look_at = None
        # Even if no caller waited when this call began: one may wait now.
        notified, self._notified = self._notified, False
        return notified

    def look_again(self) -> None:
        """Make `wait` return True soon, as after a notification."""
        self._look_at = time.monotonic() + SECOND_LOOK_SECONDS
        if self._wake is not None:
            self._wake.set()

    def close(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            self._closed = True
            thread, stop = self._thread, self._stop
        if stop is not None:
            stop.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _watch(self, wake: threading.Event) -> None:
        with self._lock:
            self._wake = wake
            self._watched = time.monotonic()
            if self._thread is None and not self._closed:
                if self._stop is not None:
                    self._stop.close()
                self._stop, stopped = socket.socketpair()
                self._thread = threading.Thread(
                    target=self._run, args=(stopped,), name="penstock-listener", daemon=True
                )
                self._thread.start()

    def _run(self, stopped: socket.socket) -> None:
        pause = _FIRST_PAUSE
        with stopped:
            while not self._over():
                try:
                    with self._server.open() as db:
                        db.execute(f"LISTEN {self._server.location.channel}")
                        pause = _FIRST_PAUSE
                        self._notify()  # notifications before LISTEN were lost: let waiters retry once
                        self._listen(db, stopped)
                except (psycopg.Error, PenstockError) as error:
                    log.warning("notifications are interrupted (%s); listening again in %s s", error, pause)
                    select.select([stopped], [], [], pause)
                    pause = min(pause * 2, _LAST_PAUSE)

    def _over(self) -> bool:
        """Return whether the thread must end, because the store was closed or no caller waits."""
        with self._lock:
            over = self._closed or time.monotonic() - self._watched > UNWATCHED_SECONDS
            if over:
                self._thread = None
            return over

    def _listen(self, db: psycopg.Connection, stopped: socket.socket) -> None:
        second_look, process = False, this_process()
        while not self._closed:
            timeout = SECOND_LOOK_SECONDS if second_look else UNWATCHED_SECONDS
            readable, _, _ = select.select([db.fileno(), stopped.fileno()], [], [], timeout)
            if stopped.fileno() in readable:
                return
            if readable:
                db.pgconn.consume_input()
                changed = False
                while (notification := db.pgconn.notifies()) is not None:
                    changed = changed or notification.extra.decode() != process
                second_look = second_look or changed
            elif not second_look and time.monotonic() - self._watched > UNWATCHED_SECONDS:
                return
            else:
                changed, second_look = second_look, False
            if changed:
                self._notify()

    def _notify(self) -> None:
        if notify(self._wake):
            return
        self._notified = True
        if self._wake is not None:
            self._wake.set()
