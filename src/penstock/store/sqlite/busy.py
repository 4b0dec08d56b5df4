"""Waiting for another process's transaction."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from typing import TypeVar

import apsw

T = TypeVar("T")

# How long a transaction waits before StoreBusy.
BUSY_SECONDS = 10.0
# Seconds between two tries, at least and at most.
Pause = tuple[float, float]
EAGER = (0.0002, 0.002)
# For steps that do the more, the later they begin: who takes or settles a batch lets others go first, and the same
# tasks need fewer syncs. Four putting processes and four workers made 1,400 commits for 12,000 tasks and not 2,250,
# and twice as many tasks a second (`python -m bench --only crowd`).
PATIENT = (0.002, 0.012)


class BusyHandler:
    """Waits in short steps of random length.

    SQLite's own steps grow to 100 ms, and whoever has waited longest looks least often. Six processes putting at
    once waited 229 ms at worst with growing steps, 119 ms with these.
    """

    def __init__(self, queue: Collection[Pause]) -> None:
        self.pause = EAGER
        self._queue = queue  # of the threads behind this one: it hurries for one that does
        self._began = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._began = now
        elif now - self._began > BUSY_SECONDS:
            return False
        time.sleep(random.uniform(*(EAGER if EAGER in self._queue else self.pause)))
        return True


def insist(step: Callable[[], T]) -> T:
    """Make a step again while it is busy: SQLite asks no handler where a step reads before it writes."""
    ends = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return step()
        except apsw.BusyError:
            if time.monotonic() >= ends:
                raise
        time.sleep(random.uniform(*EAGER))
