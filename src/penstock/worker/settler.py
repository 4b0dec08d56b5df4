"""Settles what handlers finished: everything that is finished at one moment goes in one call for each tube."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.core.task import Record
from penstock.errors import PenstockError, StoreError
from penstock.operations.store_ops import settle
from penstock.worker.running_task import Hand, Item
from penstock.worker.settlement import Verdict
from penstock.worker.stats import Tally

log = logging.getLogger("penstock.worker")

Thread = Callable[[str, Callable[[], None]], threading.Thread]

# In one step: enough to make its commit cheap, few enough not to hold the store up.
BATCH = 1000
# Seconds between attempts while the store is away.
FIRST_PAUSE = 0.05
LAST_PAUSE = 2.0


class Settler:
    """One thread. A result is kept and tried again while the store is away; a lease that is over by then is told."""

    def __init__(self, hand: Hand, tally: Tally, thread: Thread) -> None:
        self._hand = hand
        self._tally = tally
        self._done: deque[tuple[Item, Verdict]] = deque()
        self._later: list[tuple[float, int, Item, Verdict]] = []
        self._count = itertools.count()
        self._wake = threading.Event()
        self._asleep = False
        self._until: float | None = None  # when stopping: the end of all attempts
        self._thread = thread("settler", self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def add(self, item: Item, verdict: Verdict) -> None:
        """This one is finished. Cheap, and safe from any thread; only the first verdict on an item counts."""
        if item.finished:
            return
        item.finished = True
        self._done.append((item, verdict))
        if self._asleep:
            self._asleep = False  # so that one call is enough until it is awake
            self._wake.set()

    def forget(self, item: Item) -> None:
        """Its lease is over, and so nothing is to be said of it."""
        item.finished = True
        self._hand.held.discard(item)

    def stop(self, timeout: float) -> bool:
        """Settle what is finished, give up after timeout; True when nothing is left."""
        self._until = time.monotonic() + timeout
        self._wake.set()
        self._thread.join(timeout + 1)
        return not self._done

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if batch:
                self._settle_all(batch)
            elif self._until is not None:
                return
            else:
                self._sleep()

    def _sleep(self) -> None:
        self._asleep = True
        if not self._done and self._until is None:
            self._wake.wait(max(0.0, self._later[0][0] - time.monotonic()) if self._later else None)
        self._asleep = False
        self._wake.clear()

    def _next_batch(self) -> list[tuple[Item, Verdict]]:
        now, stopping = time.monotonic(), self._until is not None
        batch: list[tuple[Item, Verdict]] = []
        while self._later and (stopping or self._later[0][0] <= now):
            batch.append(heapq.heappop(self._later)[2:])
        while self._done and len(batch) < BATCH:
            item, verdict = self._done.popleft()
            if item.lost or item.settled:
                self._hand.held.discard(item)
            elif verdict.hold and not stopping:
                heapq.heappush(self._later, (now + verdict.hold, next(self._count), item, verdict))
            else:
                batch.append((item, verdict))
        return batch

    def _settle_all(self, batch: list[tuple[Item, Verdict]]) -> None:
        by_tube: dict[int, list[tuple[Item, Verdict]]] = {}
        for pair in batch:
            by_tube.setdefault(pair[0].tube.stored.no, []).append(pair)
        for pairs in by_tube.values():
            self._settle(pairs)

    def _settle(self, pairs: list[tuple[Item, Verdict]]) -> None:
        pause, tube = FIRST_PAUSE, pairs[0][0].tube
        while True:
            try:
                moves = [verdict.move for _, verdict in pairs]
                return self._settled(pairs, settle(tube.runtime, tube.stored, moves))
            except StoreError as error:
                left = LAST_PAUSE if self._until is None else self._until - time.monotonic()
                if left <= 0:
                    return log.error("%d finished tasks could not be settled and will run again: %s", len(pairs), error)
                log.warning("%d finished tasks wait for the store: %s", len(pairs), error)
                time.sleep(min(pause, left))
                pause = min(pause * 2, LAST_PAUSE)
            except PenstockError as error:  # the tube is gone, and they with it
                log.warning("%d finished tasks cannot be settled: %s", len(pairs), error)
                return self._settled(pairs, [None] * len(pairs))

    def _settled(self, pairs: list[tuple[Item, Verdict]], records: Sequence[Record | None]) -> None:
        for (item, verdict), record in zip(pairs, records, strict=True):
            self._hand.held.discard(item)
            if record is None:
                self._tally.lost += 1
                log.warning("%r was not held any more when it was %s: its result is dropped", item, verdict.what)
            else:
                self._tally.count("buried" if record.state == "!" else verdict.what)
