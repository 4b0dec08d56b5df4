"""Looks now and then where the callbacks of a store are, for a worker that was not told its tubes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.callbacks.tubes import callback_tubes
from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")

# Seconds between looks; where a store has so many tubes that a look takes long, a fiftieth of the time goes into it.
EVERY = 1.0
SHARE = 50


class Finder:
    """One thread. `follow` is told the names whenever they have changed."""

    def __init__(
        self, broker: Broker, follow: Callable[[list[str]], None],
        thread: Callable[[str, Callable[[], None]], threading.Thread],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._follow = follow
        self._stopping = threading.Event()
        self._thread = thread("finder", self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        known: list[str] = []
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                found = callback_tubes(self._broker)
                if found != known:
                    self._follow(found)
                    known = found
            except PenstockError as error:
                log.warning("cannot look for callbacks now, trying again: %s", error)
            pause = max(EVERY, SHARE * (time.monotonic() - began))
