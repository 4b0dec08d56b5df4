"""The pipe between a worker and a child process: messages are lines of JSON, and one read may return many."""

from __future__ import annotations

import select
import socket
from collections import deque

_MOST = 1 << 16


class Pipe:
    """One end of the pipe. Any thread may send; only one reads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._lines: deque[bytes] = deque()
        self._part = b""

    def send(self, line: bytes) -> None:
        """Send one message. Raises ConnectionError if the other end is gone."""
        self._end.sendall(line + b"\n")

    def next(self, timeout: float | None) -> bytes | None:
        """The next message; None if none comes in time. Raises EOFError or ConnectionError if the other end is gone."""
        while not self._lines:
            if timeout is not None and not self._poll.poll(max(0.0, timeout * 1000)):
                return None
            data = self._end.recv(_MOST)
            if not data:
                raise EOFError
            *lines, self._part = (self._part + data).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()

    def close(self) -> None:
        """Close this end."""
        self._end.close()
