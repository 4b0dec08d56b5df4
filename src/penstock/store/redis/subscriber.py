"""Notifications from other processes that tubes changed for which a call of this process waits.

A background thread reads the notifications while calls are blocked.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Iterable
from typing import cast

import redis

from penstock.store.redis.redis_connection import Connection
from penstock.store.redis.servers import Servers
from penstock.store.wake import READABLE, Selector, notify

log = logging.getLogger("penstock")

# The thread ends and closes its connection if no call has waited for this long, which exceeds a busy taker's pauses.
LINGER_SECONDS = 5.0
# A connection that is silent for this time is sent a ping.
SILENCE_SECONDS = 20.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_BROKEN = (redis.RedisError, OSError, ValueError)


class Subscription:
    """A connection subscribed to the channel of tubes, read without redis-py, which is slow for such messages."""

    def __init__(self, connection: Connection, channel: bytes) -> None:
        self._connection = connection
        connection.send_packed_command(connection.pack_command("SUBSCRIBE", channel), check_health=False)
        connection.read_response(disable_decoding=True)
        self._sock = cast(socket.socket, connection._sock)
        self._selector = Selector()
        self._selector.register(self._sock, READABLE)
        self._rest = b""

    def poll(self, seconds: float) -> set[int]:
        """Wait for messages. Returns the tubes that changed; none if the time is up first."""
        pending = getattr(self._sock, "pending", None)  # TLS: bytes that were decrypted, but not read by us
        if not (pending and pending()) and not self._selector.select(seconds):
            return set()
        received = self._sock.recv(65536)
        if not received:
            raise ConnectionError("the server has closed the connection")
        # A message consists of the lines `message`, channel and number, between lengths that begin with * or $.
        *lines, self._rest = (self._rest + received).split(b"\r\n")
        return {int(line) for line in lines if line.isdigit()}

    def ping(self) -> None:
        """Make the server answer, so that a dead connection breaks."""
        self._connection.send_packed_command(self._connection.pack_command("PING"), check_health=False)

    def interrupt(self) -> None:
        """Shut down the socket, which ends a poll in another thread."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Subscriber:
    """Notifies waiters when a tube changes that a call of this process waits for, or else makes `wait` return True."""

    def __init__(self, servers: Servers, channel: bytes) -> None:
        self._servers = servers
        self._channel = channel
        self.interests: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state, as in a forked child, where the parent's thread does not exist."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._subscription: Subscription | None = None
        self._wake: threading.Event | None = None
        self._notified = False
        self._watched = 0.0
        self._closed = False

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """Sleep until woken or the time is up. Returns True if there was a notification."""
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
        """End the thread."""
        self._closed = True
        with self._lock:
            thread, subscription = self._thread, self._subscription
        if subscription is not None:
            subscription.interrupt()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    # in the background thread

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="penstock-redis-subscriber", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._is_over():
            try:
                self._listen()
                pause = _FIRST_PAUSE
            except _BROKEN as error:
                if not self._closed:
                    log.debug("subscription to %s failed (%s); retrying", self._servers.label, error)
                    threading.Event().wait(pause * random.uniform(0.5, 1))
                    pause = min(pause * 2, _LONGEST_PAUSE)

    def _is_over(self) -> bool:
        """Whether no call has waited for a while; then this thread ends, and the next waiter starts another."""
        with self._lock:
            if not self._unwatched():
                return False
            self._thread = None
            return True

    def _unwatched(self) -> bool:
        return self._closed or time.monotonic() - self._watched >= LINGER_SECONDS

    def _listen(self) -> None:
        connection = self._servers.open_subscription()
        try:
            subscription = Subscription(connection, self._channel)
            with self._lock:
                self._subscription = subscription
            self._notify()  # notifications before the subscription were lost: check once
            self._read(subscription)
        finally:
            with self._lock:
                self._subscription = None
            connection.disconnect()

    def _read(self, subscription: Subscription) -> None:
        pinged = time.monotonic()
        while not self._unwatched():
            self._changed(subscription.poll(1.0))
            if time.monotonic() - pinged > SILENCE_SECONDS:
                pinged = time.monotonic()
                subscription.ping()

    def _changed(self, numbers: Iterable[int]) -> None:
        if not self.interests.isdisjoint(numbers):
            self._notify()

    def _notify(self) -> None:
        if notify(self._wake):
            return
        self._notified = True
        if self._wake is not None:
            self._wake.set()
