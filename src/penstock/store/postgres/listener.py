"""A thread that receives the notifications of other processes while a caller waits."""

from __future__ import annotations

import os
import socket
import threading
import time

import psycopg

from penstock.errors import PenstockError
from penstock.store.postgres.postgres_connection import PostgresServer, this_process
from penstock.store.receiver import LINGER_SECONDS, Receiver
from penstock.system.forks import reset_in_child
from penstock.system.wake import until_readable

# After a notification its sender is silent for a while (`PostgresServer.sender`). Waiters retry once more after this
# time, and find what the sender did meanwhile.
SECOND_LOOK_SECONDS = 0.025


class Listener(Receiver):
    """Wakes waiters when another process sends a notification."""

    thread_name = "penstock-listener"
    broken = (psycopg.Error, PenstockError, OSError)

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        super().__init__()
        reset_in_child(self)

    def reset(self) -> None:
        super().reset()
        self._look_at: float | None = None

    after_fork = reset

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        look_at = self._look_at
        if look_at is not None:
            seconds = min(seconds, look_at - time.monotonic())
        notified = super().wait(wake, seconds, watch=watch)
        if look_at is None or time.monotonic() < look_at:
            return notified
        if self._look_at == look_at:
            self._look_at = None
        return True

    def look_again(self) -> None:
        """Make `wait` return True soon, like a notification."""
        self._look_at = time.monotonic() + SECOND_LOOK_SECONDS
        if self._wake is not None:
            self._wake.set()

    def receive(self) -> None:
        process = this_process()
        with self._server.open() as db, socket.socket(fileno=os.dup(db.fileno())) as sock:
            db.execute(f"LISTEN {self._server.location.channel}")
            readable = until_readable(sock.fileno())
            self.connected(sock)
            while self.watched:
                if readable(LINGER_SECONDS * 1000):
                    db.pgconn.consume_input()
                    notifications = list(iter(db.pgconn.notifies, None))
                    if any(notification.extra.decode() != process for notification in notifications):
                        self.notify()
                        self.look_again()
