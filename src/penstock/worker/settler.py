"""Settles finished tasks: all that are finished at the same time share one store call per tube."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.broker.tube import Tube
from penstock.core.lifecycle import Move
from penstock.core.results import GONE
from penstock.core.task import Record
from penstock.errors import PenstockError, StoreBusy, StoreError
from penstock.operations.store_ops import settle
from penstock.worker.running_task import InFlight, RunningTask
from penstock.worker.settlement import Settlement
from penstock.worker.worker_stats import WorkerStats

log = logging.getLogger("penstock.worker")

Thread = Callable[[str, Callable[[], None]], threading.Thread]

# Tasks in one store call: enough to make its commit cheap, few enough not to delay other callers.
BATCH = 1000
# Seconds between retries while the store is unavailable.
FIRST_PAUSE = 0.05
LAST_PAUSE = 2.0


class Settler:
    """Settles tasks in one thread. Retries while the store is unavailable, and logs tasks that lost their lease."""

    def __init__(self, in_flight: InFlight, stats: WorkerStats, thread: Thread) -> None:
        self._in_flight = in_flight
        self._stats = stats
        self._done: deque[tuple[RunningTask, Settlement]] = deque()
        self._later: list[tuple[float, int, RunningTask, Settlement]] = []
        self._count = itertools.count()
        self._wake = threading.Event()
        self._asleep = False
        self._until: float | None = None  # while stopping: when to give up
        self._thread = thread("settler", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, item: RunningTask, settlement: Settlement) -> None:
        """Settle a task. Cheap, and safe from any thread; only the first settlement of a task counts."""
        if item.finished:
            return
        item.finished = True
        self._done.append((item, settlement))
        if self._asleep:
            self._asleep = False  # one wake-up is enough until it runs
            self._wake.set()

    def forget(self, item: RunningTask) -> None:
        """Drop a task whose lease was lost."""
        item.finished = True
        self._in_flight.held.discard(item)

    def stop(self, timeout: float) -> bool:
        """Settle the finished tasks, for at most `timeout` seconds. Returns whether none is left."""
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

    def _next_batch(self) -> list[tuple[RunningTask, Settlement]]:
        now, stopping = time.monotonic(), self._until is not None
        batch: list[tuple[RunningTask, Settlement]] = []
        while self._later and (stopping or self._later[0][0] <= now):
            batch.append(heapq.heappop(self._later)[2:])
        while self._done and len(batch) < BATCH:
            item, settlement = self._done.popleft()
            if item.lost or (item.settled and not settlement.if_held):
                self._in_flight.held.discard(item)
            elif settlement.hold and not stopping:
                heapq.heappush(self._later, (now + settlement.hold, next(self._count), item, settlement))
            else:
                batch.append((item, settlement))
        return batch

    def _settle_all(self, batch: list[tuple[RunningTask, Settlement]]) -> None:
        calls: dict[tuple[int, bool], list[tuple[RunningTask, Settlement]]] = {}
        for pair in batch:
            calls.setdefault((pair[0].tube.stored.no, pair[1].if_held), []).append(pair)
        for pairs in calls.values():
            self._settle(pairs)

    def _settle(self, pairs: list[tuple[RunningTask, Settlement]]) -> None:
        pause, tube, again = FIRST_PAUSE, pairs[0][0].tube, False
        while True:
            try:
                moves = [settlement.move for _, settlement in pairs]
                records = settle(tube.runtime, tube.stored, moves)
                return self._settled(pairs, applied_before(tube, moves, records) if again else records)
            except StoreError as error:
                again = True
                if pairs[0][1].if_held and isinstance(error, StoreBusy):  # the handler left its transaction open
                    log.error("cannot release tasks whose transactions are still open (%s): %r", error, pairs[0][0])
                    return self._settled(pairs, [None] * len(pairs))
                left = LAST_PAUSE if self._until is None else self._until - time.monotonic()
                if left <= 0:
                    return log.error("could not settle %d finished tasks, which will run again: %s", len(pairs), error)
                log.warning("store unavailable (%s); retrying to settle %d finished tasks", error, len(pairs))
                time.sleep(min(pause, left))
                pause = min(pause * 2, LAST_PAUSE)
            except PenstockError as error:  # the tube was dropped, and the tasks with it
                log.warning("cannot settle %d finished tasks (%s); dropping their results", len(pairs), error)
                return self._settled(pairs, [None] * len(pairs))

    def _settled(self, pairs: list[tuple[RunningTask, Settlement]], records: Sequence[Record | None]) -> None:
        for (item, settlement), record in zip(pairs, records, strict=True):
            self._in_flight.held.discard(item)
            if settlement.if_held:
                if record is not None:
                    log.warning("retrying %r: %s", item, settlement.move.reason)
            elif record is None:
                self._stats.count("lost", item)
                if not settlement.move.unstarted:  # else there is no result
                    log.warning("lost the lease of %r before it was %s; its result is dropped", item, settlement.what)
            else:
                self._stats.count("buried" if record.state == "!" else settlement.what, item)


def applied_before(tube: Tube, moves: Sequence[Move], records: Sequence[Record | None]) -> list[Record | None]:
    """The results of retried moves: a move that is refused now may have been applied before, with its answer lost."""
    refused = [move.id for move, record in zip(moves, records, strict=True) if record is None]
    found = dict(zip(refused, tube.runtime.store.get(tube.stored, refused), strict=True)) if refused else {}
    return [
        _applied(move, found[move.id]) if record is None else record
        for move, record in zip(moves, records, strict=True)
    ]


def _applied(move: Move, there: Record | None) -> Record | None:
    if there is None:
        return GONE if move.verb in ("ack", "fail", "delete") else None
    return there if there.lease == move.lease and there.state != "t" else None
