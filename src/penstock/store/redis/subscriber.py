"""Receives notifications from other processes about tubes for which a call of this process waits."""

from __future__ import annotations

import socket
import time
from typing import cast

import redis

from penstock.store.receiver import Receiver
from penstock.store.redis.servers import Servers

# A connection that is silent for this time is sent a ping, so that a dead one breaks.
SILENCE_SECONDS = 20.0


class Subscriber(Receiver):
    """Wakes waiters when a tube changes that a call of this process waits for."""

    thread_name = "penstock-redis-subscriber"
    broken = (redis.RedisError, OSError)

    def __init__(self, servers: Servers, channel: bytes) -> None:
        self._servers = servers
        self._channel = channel
        self.interests: set[int] = set()
        super().__init__()

    def receive(self) -> None:
        connection = self._servers.open_subscription()
        try:
            connection.send_command("SUBSCRIBE", self._channel)
            connection.read_response(disable_decoding=True)
            self.connected(cast(socket.socket, connection._sock))
            pinged = time.monotonic()
            while self.watched:
                if connection.can_read(1.0):
                    # b"message", the channel and the number of a tube; or the answer to a ping
                    kind, _, *number = connection.read_response(disable_decoding=True)
                    if kind == b"message" and int(number[0]) in self.interests:
                        self.notify()
                if time.monotonic() - pinged > SILENCE_SECONDS:
                    pinged = time.monotonic()
                    connection.send_command("PING")
        finally:
            connection.disconnect()
