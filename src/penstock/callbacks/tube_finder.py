"""Finds the tubes of a store that have callbacks, for workers without `--tubes`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.core.options import Tube
from penstock.core.select import Find
from penstock.errors import PenstockError

# The number of ready tasks read per tube.
TASKS_READ = 100


def callback_tubes(broker: Broker) -> list[str]:
    """The names of tubes that have a default callback, or a task with a callback among the first ready ones.

    Reads without taking, so that no task is handed out needlessly.
    """
    tubes = broker.runtime.store.load_tubes()
    return [tube.name for tube in tubes if tube.kind.leased and _has_callbacks(broker, tube)]


def _has_callbacks(broker: Broker, tube: Tube) -> bool:
    if tube.callback is not None:
        return True
    runtime = broker.runtime
    runtime.apply_due(tube)
    return any(record.options.callback is not None for record in runtime.store.find(tube, Find("r", 0, TASKS_READ)))


log = logging.getLogger("penstock.worker")

# Seconds between searches; in a store with very many tubes, at most a fiftieth of the time is spent on them.
EVERY = 1.0
SHARE = 50


class Finder:
    """Finds tubes with callbacks, in one thread. Calls `follow` with their names whenever these have changed."""

    def __init__(
        self, broker: Broker, follow: Callable[[list[str]], None],
        thread: Callable[[str, Callable[[], None]], threading.Thread],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._follow = follow
        self._stopping = threading.Event()
        self._thread = thread("finder", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
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
                log.warning("could not search for callbacks (%s); retrying", error)
            pause = max(EVERY, SHARE * (time.monotonic() - began))
