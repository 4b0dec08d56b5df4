"""Receives notifications from other processes about tubes for which a call of this process waits."""

from __future__ import annotations

import socket
import time
from typing import cast

import redis

from penstock.store.redis.redis_connection import Connection
from penstock.store.redis.servers import Servers
from penstock.store.wake import READABLE, Receiver, Selector

# A connection that is silent for this time is sent a ping.
SILENCE_SECONDS = 20.0


class Subscription:
    """A connection subscribed to the channel of tubes, read without redis-py, which is slow for such messages."""

    def __init__(self, connection: Connection, channel: bytes) -> None:
        self._connection = connection
        connection.send_packed_command(connection.pack_command("SUBSCRIBE", channel), check_health=False)
        connection.read_response(disable_decoding=True)
        self.sock = cast(socket.socket, connection._sock)
        self._selector = Selector()
        self._selector.register(self.sock, READABLE)
        self._rest = b""

    def poll(self, seconds: float) -> set[int]:
        """Wait for messages. Returns the tubes that changed; none if no message comes in time."""
        pending = getattr(self.sock, "pending", None)  # TLS: bytes that were decrypted, but not read by us
        if not (pending and pending()) and not self._selector.select(seconds):
            return set()
        received = self.sock.recv(65536)
        if not received:
            raise ConnectionError("the server has closed the connection")
        # A message consists of the lines `message`, channel and number, between lengths that begin with * or $.
        *lines, self._rest = (self._rest + received).split(b"\r\n")
        return {int(line) for line in lines if line.isdigit()}

    def ping(self) -> None:
        """Make the server answer, so that a dead connection breaks."""
        self._connection.send_packed_command(self._connection.pack_command("PING"), check_health=False)


class Subscriber(Receiver):
    """Wakes waiters when a tube changes that a call of this process waits for."""

    thread_name = "penstock-redis-subscriber"
    broken = (redis.RedisError, OSError, ValueError)

    def __init__(self, servers: Servers, channel: bytes) -> None:
        self._servers = servers
        self._channel = channel
        self.interests: set[int] = set()
        super().__init__()

    def receive(self) -> None:
        connection = self._servers.open_subscription()
        try:
            subscription = Subscription(connection, self._channel)
            self.connected(subscription.sock)
            pinged = time.monotonic()
            while self.watched:
                if not self.interests.isdisjoint(subscription.poll(1.0)):
                    self.notify()
                if time.monotonic() - pinged > SILENCE_SECONDS:
                    pinged = time.monotonic()
                    subscription.ping()
        finally:
            connection.disconnect()
