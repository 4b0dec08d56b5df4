"""Load on one server: idle connections, slow readers and hostile bytes on both ports, and two normal clients.

`python -m tests.server.load --connections 5000 --seconds 60` opens that many connections of each protocol and prints
what it measured; the suite runs a small one. It fails if a call of a normal client fails or memory grows.
"""

from __future__ import annotations

import argparse
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import httpx

from tests.server.server_process import PATIENCE, Serve

BOTH = ("--http", "127.0.0.1:0", "--resp", "127.0.0.1:0")
MEBIBYTE = 1024 * 1024
# An idle connection costs a few KiB; buffers for slow readers are bounded by their number.
IDLE_BYTES = 40 * 1024
SLOW_READERS = 10
SLOW_BYTES = 3 * MEBIBYTE
# What the allocator may keep after a peak.
SLACK = 40 * MEBIBYTE


@dataclass
class Seen:
    """What the normal clients and the operator saw."""

    connections: int = 0
    honest: int = 0
    hostile: int = 0
    slowest: float = 0.0
    memory: list[int] = field(default_factory=list)  # alone, with all connections, at the end
    failures: list[str] = field(default_factory=list)


class Load:
    """All clients of one server."""

    def __init__(self, server: Serve, connections: int) -> None:
        self._server = server
        self._connections = connections
        self._over = threading.Event()
        self._held: list[socket.socket] = []
        self.seen = Seen()

    def run(self, seconds: float) -> Seen:
        """Run for that many seconds. Returns what was seen."""
        seen = self.seen
        threads = [threading.Thread(target=work) for work in (self._redis, self._http, self._hostile, self._hostile)]
        with ExitStack() as opened:
            opened.callback(self._leave)
            self._tasks()
            seen.memory.append(self._server.memory())
            for thread in threads:
                thread.start()
            opened.callback(self._end, threads)
            self._connect_clients()
            for _ in range(2):
                self._over.wait(seconds / 2)
                seen.memory.append(self._server.memory())
        return seen

    def _end(self, threads: list[threading.Thread]) -> None:
        self._over.set()
        for thread in threads:
            thread.join()

    def _tasks(self) -> None:
        """Put what slow readers ask for: replies of a mebibyte and more."""
        client = self._server.client()
        client.execute_command("MQ.PUSH", "big", *[b"x" * 100_000] * 12)
        client.execute_command("TUBE.CREATE", "mail", "fifo")

    def _connect_clients(self) -> None:
        """Open idle connections, half of them in the middle of a command, and slow readers that ask for more."""
        for number in range(self._connections):
            redis, http = self._connect(self._server.port), self._connect(self._server.http_port)
            if number % 2:
                redis.sendall(b"*2\r\n$4\r\nEC")
                http.sendall(b"GET /health HT")
        idle = len(self._held)
        for _ in range(SLOW_READERS):
            self._connect(self._server.port).sendall(b"MQ.INSPECT big 0 12\r\n" * 20)
            self._connect(self._server.http_port).sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            page = b"GET /api/tubes/big/inspect HTTP/1.1\r\nHost: localhost\r\n\r\n"
            self._connect(self._server.http_port).sendall(page * 20)
        for slow in self._held[idle:]:  # once it is answered, its buffer does not grow any more
            slow.recv(1, socket.MSG_PEEK)
        self.seen.connections = len(self._held)

    def _connect(self, port: int) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._held.append(client)
        return client

    def _leave(self) -> None:
        for client in self._held:
            client.close()

    # the normal clients and the operator

    def _redis(self) -> None:
        client = self._server.client()

        def call() -> bool:
            id = client.execute_command("TUBE.PUT", "mail", "honest")
            task = client.execute_command("TUBE.TAKE", "mail", "TIMEOUT", "60")
            return bool(task and client.execute_command("TUBE.ACK", "mail", task[0]) == b"OK" and id)

        self._work("redis", call)

    def _http(self) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self._server.http_port}", timeout=PATIENCE) as client:

            def call() -> bool:
                put = client.post("/api/tubes/web/tasks", json={"data": "honest"})
                task = client.post("/api/tubes/web/take", json={"timeout": PATIENCE})
                ack = client.post(f"/api/tubes/web/tasks/{task.json()['id']}/ack", json={"lease": task.json()["lease"]})
                return (put.status_code, task.status_code, ack.status_code) == (201, 200, 200)

            self._work("http", call)

    def _work(self, who: str, call: Callable[[], bool]) -> None:
        while True:
            began = time.monotonic()
            try:
                if not call():
                    self.seen.failures.append(f"{who}: an answer is wrong")
            except Exception as error:
                self.seen.failures.append(f"{who}: {error!r}")
                return
            self.seen.honest += 1
            self.seen.slowest = max(self.seen.slowest, time.monotonic() - began)
            if self._over.wait(0.02):
                return

    def _hostile(self) -> None:
        """Send bytes that are no command, or nearly one, then disconnect."""
        chance = random.Random(threading.get_ident())
        begun = (
            b"",
            b"*3\r\n$",
            b"*1\r\n$99999999\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
            b"POST /api/tubes ",
        )
        while not self._over.is_set():
            port = chance.choice((self._server.port, self._server.http_port))
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(chance.choice(begun) + chance.randbytes(chance.randint(1, 20_000)))
                if chance.random() < 0.5:
                    client.settimeout(0.05)
                    client.recv(1000)
            self.seen.hostile += 1
            self._over.wait(0.01)


def problems(seen: Seen) -> list[str]:
    """The limits that were exceeded."""
    first, crowded, last = seen.memory
    allowed = seen.connections * IDLE_BYTES + 3 * SLOW_READERS * SLOW_BYTES + SLACK
    found = list(seen.failures)
    if crowded - first > allowed:
        found.append(f"{seen.connections} connections took {(crowded - first) / MEBIBYTE:.0f} MiB")
    if last - crowded > SLACK:
        found.append(f"memory grew by {(last - crowded) / MEBIBYTE:.0f} MiB while they stayed")
    return found


def main() -> int:
    """Run with many connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5000, help="idle ones of each protocol")
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-load-"))
        server = opened.enter_context(Serve(f"sqlite:///{folder}/queue.db", *BOTH))
        seen = Load(server, given.connections).run(given.seconds)
    sizes = ", ".join(f"{size / MEBIBYTE:.0f}" for size in seen.memory)
    wrong = problems(seen)
    lines = [
        f"{seen.connections} connections, {seen.hostile} hostile, {seen.honest} honest rounds of put, take and ack",
        f"slowest {seen.slowest:.3f} s; memory {sizes} MiB: alone, with all of them, at the end",
        *(f"wrong: {line}" for line in wrong),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
