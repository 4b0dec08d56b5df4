"""A blocked caller that sleeps alone in its process hears of changes elsewhere itself, without a thread between."""

from __future__ import annotations

import threading
import time
from functools import partial

from penstock.runtime.wait_queue import Room, Waiter
from penstock.store.wake import News


class Ears:
    """Of one waiter, in the room that it entered."""

    __slots__ = ("_news", "_room")

    def __init__(self, room: Room, news: News) -> None:
        self._room = room
        self._news = news

    def sleep(self, waiter: Waiter, seconds: float | None) -> bool:
        """As Waiter.sleep."""
        ends = None if seconds is None else time.monotonic() + seconds
        stir = self._news.lend() if self._room.is_alone(waiter) else None
        if stir is None:
            self._news.listen_on()
            return waiter.rest(seconds)
        try:
            return waiter.on_wake(partial(_set, stir)) or self._hear(stir, ends)
        finally:
            waiter.on_wake(None)
            self._news.give_back()
            if not self._room.is_alone(waiter):  # who came since may have counted on this one
                self._news.listen_on()

    def others_listen(self) -> None:
        """Its waiter sleeps without a thread."""
        self._news.listen_on()

    def _hear(self, stir: threading.Event, ends: float | None) -> bool:
        """Whether it was stirred, or can hear no more: what it has missed then, it must look for."""
        while not stir.is_set():
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not self._news.hear(left):
                return True
        return True


def _set(stir: threading.Event) -> bool:
    stir.set()
    return True
