"""Notifications from other processes: which tubes changed while a call of this process waits for them.

A background thread reads them while calls are blocked. A caller that sleeps alone may read them itself, which saves a
change of threads.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterable
from typing import cast

import redis

from penstock.store.redis.redis_connection import Connection
from penstock.store.redis.servers import Servers
from penstock.store.wake import READABLE, Selector, Wake, notify

log = logging.getLogger("penstock")

# The thread and its connection end when no call has waited for this time. Longer than the pauses of a busy taker.
LINGER_SECONDS = 5.0
# A connection that is silent for this time is sent a ping.
SILENCE_SECONDS = 20.0
# How long a caller waits for the thread to stop reading, which takes a change of threads.
YIELD_SECONDS = 0.1
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_BROKEN = (redis.RedisError, OSError, ValueError)
# In seconds: poll() takes milliseconds as a C int, which holds 24 days. Longer waits poll repeatedly.
_LONGEST = 24 * 3600.0


class Subscription:
    """A connection that is subscribed to the channel of tubes, read without redis-py, which is slow for such messages.

    Only one thread may read at a time; the other methods may be called by any thread, except with TLS.
    """

    def __init__(self, connection: Connection, channel: bytes) -> None:
        #: Ends a poll.
        self.wake = Wake()
        self._connection = connection
        connection.send_packed_command(connection.pack_command("SUBSCRIBE", channel), check_health=False)
        connection.read_response(disable_decoding=True)
        self._sock = cast(socket.socket, connection._sock)
        self._selector = Selector()
        self._selector.register(self._sock, READABLE)
        #: Whether one thread may read while another sends a ping or ends the poll.
        self.lendable = hasattr(os, "eventfd") and not hasattr(self._sock, "pending")
        if self.lendable:
            self._selector.register(self.wake, READABLE)
        self._rest = b""

    def poll(self, seconds: float | None) -> set[int]:
        """Wait for messages. Returns the tubes that changed; none if `wake` is set or the time is up first."""
        pending = getattr(self._sock, "pending", None)  # TLS: bytes already read from the socket, but not by us
        if not (pending and pending()):
            ready = self._selector.select(None if seconds is None else min(max(0.0, seconds), _LONGEST))
            if self._sock not in [key.fileobj for key, _ in ready]:
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
        """Wake the reader, which finds the connection closed."""
        self.wake.set()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the connection, which no thread may be reading."""
        self._connection.disconnect()


class Subscriber:
    """Notifies waiters when a tube changes that a call here waits for; else sets a flag that `wait` returns."""

    def __init__(self, servers: Servers, channel: bytes) -> None:
        self._servers = servers
        self._channel = channel
        self.interests: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """Start over; also in a forked child, where the parent's thread does not exist."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._subscription: Subscription | None = None
        self._reading = threading.Lock()  # held by the thread that reads
        self._lent = False  # the background thread leaves reading to callers
        self._back = threading.Event()  # until this is set
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
        # A thread that was awake when a notification came may have cleared the wake-up: then do not sleep.
        if not self._notified:
            wake.wait(max(seconds, 0))
        # Also if no call waited when this one began: one may wait now.
        notified, self._notified = self._notified, False
        return notified

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._back.set()
        with self._lock:
            thread, subscription = self._thread, self._subscription
        if subscription is not None:
            subscription.interrupt()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    # for a caller that sleeps

    def acquire(self) -> threading.Event | None:
        """Let the caller read notifications by `poll` until it gives back; the event ends its sleep.

        None if there is no subscription, or the thread does not stop reading.
        """
        subscription = self._subscription
        if subscription is None or self._closed or not subscription.lendable:
            return None
        self._lent = True
        if not self._reading.acquire(blocking=False):
            subscription.wake.set()
            if not self._reading.acquire(timeout=YIELD_SECONDS):
                self._take_back()
                return None
        subscription.wake.clear()
        if self._subscription is not subscription:  # the subscription has ended meanwhile
            self.release()
            return None
        return subscription.wake

    def poll(self, seconds: float | None) -> bool:
        """Read notifications once, up to this time, and pass them on; False if the connection is broken."""
        subscription = self._subscription
        if subscription is None or self._closed:
            return False
        try:
            self._changed(subscription.poll(seconds))
        except _BROKEN:
            subscription.lendable = False
            self._take_back()  # it finds the connection broken too, and reconnects
            return False
        return True

    def release(self) -> None:
        """Stop reading. If anyone waits who is not about to read, call `listen` then."""
        self._reading.release()

    def listen(self) -> None:
        """Let the background thread read, unless a caller does."""
        if self._lent and not self._reading.locked():
            self._take_back()

    def _take_back(self) -> None:
        self._lent = False
        self._back.set()

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
        except BaseException:
            connection.disconnect()
            raise
        self._lent = False
        with self._lock:
            self._subscription = subscription
        try:
            self._notify()  # notifications before the subscription are lost: look once
            self._read(subscription)
        finally:
            with self._lock:
                self._subscription = None
            subscription.wake.set()
            with self._reading:  # else a thread that still polls would poll whatever gets the same descriptor
                subscription.close()

    def _read(self, subscription: Subscription) -> None:
        pinged = time.monotonic()
        while not self._unwatched():
            if self._lent:
                self._back.wait(1.0)
                self._back.clear()
            else:
                self._changed(self._read_once(subscription))
            if time.monotonic() - pinged > SILENCE_SECONDS:
                pinged = time.monotonic()
                subscription.ping()

    def _read_once(self, subscription: Subscription) -> set[int]:
        with self._reading:
            subscription.wake.clear()  # before `_lent` is read: a caller that wants to read sets that first
            return set() if self._lent else subscription.poll(1.0)

    def _changed(self, numbers: Iterable[int]) -> None:
        if not self.interests.isdisjoint(numbers):
            self._notify()

    def _notify(self) -> None:
        if notify(self._wake):
            return
        self._notified = True
        if self._wake is not None:
            self._wake.set()
