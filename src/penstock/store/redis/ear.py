"""A connection that has subscribed to the news of tubes, and is read without redis-py, which is slow for one number."""

from __future__ import annotations

import os
import select
import socket
from typing import cast

from penstock.store.redis.link import Connection
from penstock.store.wake import Wake

# In seconds: poll() counts milliseconds by an int of C, which holds 24 days. Whoever waits for longer hears again.
_LONGEST = 24 * 3600.0


class Ear:
    """Whoever reads must be the only one at that moment; all else may be called by anyone, but for TLS."""

    def __init__(self, connection: Connection, channel: bytes) -> None:
        #: Ends a wait.
        self.stir = Wake()
        self._connection = connection
        connection.send_packed_command(connection.pack_command("SUBSCRIBE", channel), check_health=False)
        connection.read_response(disable_decoding=True)
        self._sock = cast(socket.socket, connection._sock)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        #: Whether one thread may read while another asks, and be stirred.
        self.lendable = hasattr(os, "eventfd") and not hasattr(self._sock, "pending")
        if self.lendable:
            self._poll.register(self.stir, select.POLLIN)
        self._rest = b""

    def hear(self, seconds: float | None) -> set[int]:
        """The numbers of tubes that there is news of; none when it is stirred or the time is over before."""
        pending = getattr(self._sock, "pending", None)  # TLS: read from the socket already, but not by us
        if not (pending and pending()):
            ready = self._poll.poll(None if seconds is None else min(max(0.0, seconds), _LONGEST) * 1000)
            if self._sock.fileno() not in [place for place, _ in ready]:
                return set()
        received = self._sock.recv(65536)
        if not received:
            raise ConnectionError("the server has closed the connection")
        # A message is a line each of `message`, the channel and the number, between lengths that begin with * or $.
        *lines, self._rest = (self._rest + received).split(b"\r\n")
        return {int(line) for line in lines if line.isdigit()}

    def ask(self) -> None:
        """Have the server answer, so that a connection that is dead breaks."""
        self._connection.send_packed_command(self._connection.pack_command("PING"), check_health=False)

    def shut(self) -> None:
        """Wake its reader, who finds it closed."""
        self.stir.set()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Let go of it; nobody may be reading."""
        self._connection.disconnect()
