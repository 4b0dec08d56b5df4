"""A real `penstock serve` in a separate process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


# For what even a busy machine does soon: an answer, an end.
PATIENCE = 60.0
# Otherwise a slow call would be retried on another connection, and so in another session.
ONCE: dict[str, Any] = {"socket_timeout": PATIENCE, "retry": Retry(NoBackoff(), 0)}


class Serve:
    """A server on a free loopback port, listening when this returns. `start` after `kill` finds the old data."""

    def __init__(self, url: str, *arguments: str, token: str | None = None, host: str = "127.0.0.1") -> None:
        self.url = url
        self._host = host
        self._opened = ExitStack()
        self.arguments = arguments or ("--resp", "127.0.0.1:0")
        self._environment = {**os.environ, **({"PENSTOCK_TOKEN": token} if token else {})}
        self.start()

    def start(self) -> None:
        command = [*COMMAND, "--url", self.url, "serve", *self.arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        assert self.process.stdout is not None
        if "--http" in self.arguments:
            served = re.fullmatch(r"penstock serves http://.*:([0-9]+)/\n", self.process.stdout.readline())
            assert served
            self.http_port = int(served[1])
        line = self.process.stdout.readline()
        found = re.fullmatch(rf"penstock serves rediss?://{re.escape(self._host)}:([0-9]+)\n", line)
        assert found, (line, self.process.communicate(timeout=PATIENCE))
        self.port = int(found[1])

    def client(self, **options: Any) -> Any:
        """A redis-py client with one connection, which is one session. Its calls have no useful types."""
        client = redis.Redis(port=self.port, single_connection_client=True, **{**ONCE, **options})
        self._opened.callback(client.close)
        return client

    def raw(self, *, buffer: int | None = None) -> socket.socket:
        """A connected socket; with `buffer`, the kernel holds few bytes for it, in both directions."""
        connected = self._opened.enter_context(socket.socket())
        connected.settimeout(PATIENCE)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF) if buffer else ():
            connected.setsockopt(socket.SOL_SOCKET, option, buffer or 0)
        connected.connect(("127.0.0.1", self.port))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM. Returns the exit code and the standard error."""
        self._opened.close()
        self.process.send_signal(signal.SIGTERM)
        _, stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, stderr

    def memory(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+([0-9]+) kB", status)
        assert found
        return int(found[1]) * 1024

    def cpu(self) -> float:
        """CPU time so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()
        if self.process.poll() is None:
            self.kill()


def read_exactly(connected: socket.socket, expected: bytes) -> None:
    """Read exactly that many bytes."""
    got = bytearray()
    while len(got) < len(expected):
        some = connected.recv(len(expected) - len(got))
        assert some, (bytes(got), "closed")
        got += some
    assert bytes(got) == expected


def read_to_end(connected: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    got = bytearray()
    try:
        while some := connected.recv(65536):
            got += some
    except ConnectionResetError:
        pass
    return bytes(got)
