"""News from other processes: a thread that subscribes while someone waits, and is gone a while after."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import cast

import redis

from penstock.store.redis.link import Connection
from penstock.store.redis.servers import Servers
from penstock.store.wake import tell

log = logging.getLogger("penstock")

# Nobody has waited for so long: the thread and its connection go. Longer than the pauses of a busy taker.
LINGER_SECONDS = 5.0
# A connection that is silent for so long is asked whether it lives.
SILENCE_SECONDS = 20.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class Listener:
    """Hints the waiters when news of a tube comes that someone here waits on; else sets a flag that `wait` returns."""

    def __init__(self, servers: Servers, channel: bytes) -> None:
        self._servers = servers
        self._channel = channel
        self.interests: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """As new; also in a forked child, where the parent's thread is not."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._wake: threading.Event | None = None
        self._heard = False
        self._watched = 0.0
        self._closed = False

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """Sleep until woken or the time is over; True when there was news."""
        self._wake = wake
        if watch:
            self._watched = time.monotonic()
            self._start()
        if not self._heard:  # else the wake-up may have been cleared by whoever was awake when the news came
            wake.wait(max(seconds, 0))
        # Also where nobody waited when this began: somebody may have begun to since.
        heard, self._heard = self._heard, False
        return heard

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        with self._lock:
            thread, connection = self._thread, self._connection
        if connection is not None:
            _shut(connection)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="penstock-redis-news", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._over():
            try:
                self._listen()
                pause = _FIRST_PAUSE
            except (redis.RedisError, OSError, ValueError) as error:
                if not self._closed:
                    log.debug("no news from %s now (%s); listening again soon", self._servers.label, error)
                    threading.Event().wait(pause * random.uniform(0.5, 1))
                    pause = min(pause * 2, _LONGEST_PAUSE)

    def _over(self) -> bool:
        """Whether nobody has waited for a while; then this thread is done, and the next who waits starts another."""
        with self._lock:
            if not self._closed and time.monotonic() - self._watched < LINGER_SECONDS:
                return False
            self._thread = None
            return True

    def _listen(self) -> None:
        connection = self._servers.listen()
        with self._lock:
            self._connection = connection
        try:
            connection.send_packed_command(connection.pack_command("SUBSCRIBE", self._channel), check_health=False)
            connection.read_response(disable_decoding=True)
            self._tell()  # what happened before is not heard: look once
            asked = time.monotonic()
            while not self._closed and time.monotonic() - self._watched < LINGER_SECONDS:
                if connection.can_read(timeout=1.0):
                    self._hear(cast("list[object]", connection.read_response(disable_decoding=True)))
                elif time.monotonic() - asked > SILENCE_SECONDS:
                    asked = time.monotonic()
                    connection.send_packed_command(connection.pack_command("PING"), check_health=False)
        finally:
            with self._lock:
                self._connection = None
            connection.disconnect()

    def _hear(self, message: list[object]) -> None:
        if message[0] == b"message" and int(cast(bytes, message[2])) in self.interests:
            self._tell()

    def _tell(self) -> None:
        if tell(self._wake):
            return
        self._heard = True
        if self._wake is not None:
            self._wake.set()


def _shut(connection: Connection) -> None:
    """Wake its reader, who closes it."""
    sock = connection._sock
    try:
        if sock is not None:
            sock.shutdown(2)  # type: ignore[attr-defined]
    except OSError:
        pass
