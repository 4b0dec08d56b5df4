"""News from other processes: read by a thread while someone waits, or by the one who waits, while that is alone."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable

import redis

from penstock.store.redis.ear import Ear
from penstock.store.redis.servers import Servers
from penstock.store.wake import tell

log = logging.getLogger("penstock")

# Nobody has waited for so long: the thread and its connection go. Longer than the pauses of a busy taker.
LINGER_SECONDS = 5.0
# A connection that is silent for so long is asked whether it lives.
SILENCE_SECONDS = 20.0
# So long a caller waits for the thread to stop reading, which takes a change of threads.
YIELD_SECONDS = 0.1
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_BROKEN = (redis.RedisError, OSError, ValueError)


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
        self._ear: Ear | None = None
        self._reading = threading.Lock()  # held by who reads
        self._lent = False  # the thread leaves reading to those who sleep
        self._back = threading.Event()  # until it is set
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
        self._back.set()
        with self._lock:
            thread, ear = self._thread, self._ear
        if ear is not None:
            ear.shut()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    # for a caller that sleeps

    def lend(self) -> threading.Event | None:
        """Let the caller read the news by `hear`, until it gives back; the event ends its sleep.

        None where there is nothing to read from, or the thread does not stop reading.
        """
        ear = self._ear
        if ear is None or self._closed or not ear.lendable:
            return None
        self._lent = True
        if not self._reading.acquire(blocking=False):
            ear.stir.set()
            if not self._reading.acquire(timeout=YIELD_SECONDS):
                self._take_back()
                return None
        ear.stir.clear()
        if self._ear is not ear:  # it has ended meanwhile
            self.give_back()
            return None
        return ear.stir

    def hear(self, seconds: float | None) -> bool:
        """Read news once, up to so long, and tell of it; False where the connection has broken."""
        ear = self._ear
        if ear is None or self._closed:
            return False
        try:
            self._told(ear.hear(seconds))
        except _BROKEN:
            ear.lendable = False
            self._take_back()  # it finds the same, and connects again
            return False
        return True

    def give_back(self) -> None:
        """Nobody reads from now on: who waits, and is not about to read, must have the thread `listen_on`."""
        self._reading.release()

    def listen_on(self) -> None:
        """Have the thread read, unless another does."""
        if self._lent and not self._reading.locked():
            self._take_back()

    def _take_back(self) -> None:
        self._lent = False
        self._back.set()

    # in the thread

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
            except _BROKEN as error:
                if not self._closed:
                    log.debug("no news from %s now (%s); listening again soon", self._servers.label, error)
                    threading.Event().wait(pause * random.uniform(0.5, 1))
                    pause = min(pause * 2, _LONGEST_PAUSE)

    def _over(self) -> bool:
        """Whether nobody has waited for a while; then this thread is done, and the next who waits starts another."""
        with self._lock:
            if not self._unwatched():
                return False
            self._thread = None
            return True

    def _unwatched(self) -> bool:
        return self._closed or time.monotonic() - self._watched >= LINGER_SECONDS

    def _listen(self) -> None:
        connection = self._servers.listen()
        try:
            ear = Ear(connection, self._channel)
        except BaseException:
            connection.disconnect()
            raise
        self._lent = False
        with self._lock:
            self._ear = ear
        try:
            self._tell()  # what happened before is not heard: look once
            self._read(ear)
        finally:
            with self._lock:
                self._ear = None
            ear.stir.set()
            with self._reading:  # else one that still reads would go on with whatever gets the same number
                ear.close()

    def _read(self, ear: Ear) -> None:
        asked = time.monotonic()
        while not self._unwatched():
            if self._lent:
                self._back.wait(1.0)
                self._back.clear()
            else:
                self._told(self._read_once(ear))
            if time.monotonic() - asked > SILENCE_SECONDS:
                asked = time.monotonic()
                ear.ask()

    def _read_once(self, ear: Ear) -> set[int]:
        with self._reading:
            ear.stir.clear()  # before the look at `_lent`: who wants to read sets that first
            return set() if self._lent else ear.hear(1.0)

    def _told(self, numbers: Iterable[int]) -> None:
        if not self.interests.isdisjoint(numbers):
            self._tell()

    def _tell(self) -> None:
        if tell(self._wake):
            return
        self._heard = True
        if self._wake is not None:
            self._wake.set()
