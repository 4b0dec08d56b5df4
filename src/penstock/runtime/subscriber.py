"""Lets a blocked caller that is alone in its process listen for changes itself, without a thread in between."""

from __future__ import annotations

import threading
import time
from functools import partial

from penstock.runtime.wait_queue import Waiter, WaitQueue
from penstock.store.wake import Notifications


class Subscriber:
    """Sleeps for one waiter, on the store's notifications if it is the only one in its queue."""

    __slots__ = ("_notifications", "_queue")

    def __init__(self, queue: WaitQueue, notifications: Notifications) -> None:
        self._queue = queue
        self._notifications = notifications

    def sleep(self, waiter: Waiter, seconds: float | None) -> bool:
        """As Waiter.sleep."""
        ends = None if seconds is None else time.monotonic() + seconds
        stir = self._notifications.acquire() if self._queue.is_alone(waiter) else None
        if stir is None:
            self._notifications.listen()
            return waiter.sleep_unsubscribed(seconds)
        try:
            return waiter.on_wake(partial(_set, stir)) or self._poll(stir, ends)
        finally:
            waiter.on_wake(None)
            self._notifications.release()
            if not self._queue.is_alone(waiter):  # a waiter that came since may have relied on this one
                self._notifications.listen()

    def listen_elsewhere(self) -> None:
        """Have the store's own thread listen, because this waiter sleeps without a thread."""
        self._notifications.listen()

    def _poll(self, stir: threading.Event, ends: float | None) -> bool:
        """Listen until woken or notified. True also if it can listen no more, because it may have missed something."""
        while not stir.is_set():
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not self._notifications.poll(left):
                return True
        return True


def _set(stir: threading.Event) -> bool:
    stir.set()
    return True
