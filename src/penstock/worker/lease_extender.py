"""Keeps what the worker holds alive: leases extended, progress told, and what waits too long given back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.broker.session import SessionHandle
from penstock.broker.tube import Tube
from penstock.core.lifecycle import Move
from penstock.errors import PenstockError
from penstock.operations.store_ops import settle
from penstock.worker import settlement as verdict
from penstock.worker.running_task import MAX_WAIT, Item
from penstock.worker.state import Work

log = logging.getLogger("penstock.worker")

# A lease is extended when a third of it is over: two beats may fail before it lapses.
EXTEND_AT = 2 / 3
# Looks in the time that a task may wait to be started; it is given back one look early.
LOOKS = 4
# So often, while something runs: progress is told with that delay.
RUNNING_TICK = 0.2
# Looks in the time of a lease.
LEASE_LOOKS = 6


class Heart:
    """One thread. All leases that need it are extended in one call for each tube."""

    def __init__(self, work: Work, session_handle: SessionHandle, on_tick: Callable[[], None]) -> None:
        self._work = work
        self.session_handle = session_handle
        self._on_tick = on_tick
        self._wake = threading.Event()
        self._slow = True  # asleep for longer than a task may wait
        self._stopping = False
        self._thread = work.thread("heart", self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def poke(self) -> None:
        """Something was taken."""
        if self._slow:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._slow = True  # what is taken during this look may need a sooner next one
            pause = self._tick(time.monotonic())
            self._slow = pause is None or pause > MAX_WAIT / LOOKS
            self._wake.wait(pause)
            self._wake.clear()

    def _tick(self, now: float) -> float | None:
        """Look after everything held; seconds until the next look, None when there is nothing to look after."""
        held = list(self._work.hand.held)
        if not held:
            return None
        pause = RUNNING_TICK
        if self._work.hand.unstarted:
            pause = min(item.patience for item in held) / LOOKS
            self._give_back(now + pause)
        touches: dict[Tube, list[tuple[Item, Move]]] = {}
        for item in held:
            move = self._touch(item, now)
            if move is not None:
                touches.setdefault(item.tube, []).append((item, move))
        for tube, pairs in touches.items():
            self._send(tube, pairs)
        self._on_tick()
        shortest = min((item.ttr for item in held if item.ttr is not None), default=60)
        return min(pause, max(0.002, shortest / LEASE_LOOKS))

    def _give_back(self, now: float) -> None:
        """What has waited too long is another's: all handlers here are busy, and so nothing is taken ahead either."""
        for item in self._work.hand.claim_overdue(now):
            self._work.pace.forget()
            self._work.settler.add(item, verdict.unstarted(item))

    def _touch(self, item: Item, now: float) -> Move | None:
        """What must be told to the store of this one, if anything."""
        if item.lost:
            return None
        if item.session != self.session_handle.number:
            self._lose(item)  # the session is gone, and all its leases with it
            return None
        extra, progress = _extension(item, now), item.progress
        if not extra and progress == item.told:
            return None
        record = item.task._record
        return Move("touch", record.id, item.session, record.lease, round(extra * 1000), progress=progress)

    def _send(self, tube: Tube, pairs: list[tuple[Item, Move]]) -> None:
        try:
            records = settle(tube.runtime, tube.stored, [move for _, move in pairs])
        except PenstockError as error:
            log.warning("%d leases could not be extended: %s", len(pairs), error)
            for item, _ in pairs:
                if item.deadline is not None and item.deadline <= time.monotonic():
                    self._lose(item)
            return
        for (item, move), record in zip(pairs, records, strict=True):
            if record is None:
                self._lose(item)
                continue
            item.told = move.progress
            if item.deadline is not None:
                item.deadline += move.extra / 1000

    def _lose(self, item: Item) -> None:
        if not item.finished:  # else it may just have been settled
            log.warning("%r is not held any more: its handler is told so", item, extra={"item": item})
            self._work.tally.lost += 1
            item.lose()


def _extension(item: Item, now: float) -> float:
    """Seconds to add to its lease now, so that it is a whole ttr long again; 0 while most of it is left."""
    if item.deadline is None or item.ttr is None or item.deadline - now > item.ttr * EXTEND_AT:
        return 0
    until = now + item.ttr if item.ends is None else min(now + item.ttr, item.ends)
    return max(0.0, until - item.deadline)
