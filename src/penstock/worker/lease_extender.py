"""Extends the leases of running tasks, stores their progress, and releases tasks that wait too long to start."""

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
from penstock.worker import settlement
from penstock.worker.running_task import MAX_WAIT, RunningTask
from penstock.worker.state import WorkerState

log = logging.getLogger("penstock.worker")

# A lease is extended when a third of it is over: two attempts may fail before it lapses.
EXTEND_AT = 2 / 3
# Checks within the time that a task may wait to be started; it is released one check early.
LOOKS = 4
# Seconds between checks while something runs: progress is stored with that delay.
RUNNING_TICK = 0.2
# Checks within the time of a lease.
LEASE_LOOKS = 6


class LeaseExtender:
    """One thread. All leases of a tube that need it are extended in one store call."""

    def __init__(self, state: WorkerState, session_handle: SessionHandle, on_tick: Callable[[], None]) -> None:
        self._state = state
        self.session_handle = session_handle
        self._on_tick = on_tick
        self._wake = threading.Event()
        self._slow = True  # asleep for longer than a task may wait to start
        self._stopping = False
        self._thread = state.thread("lease-extender", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def poke(self) -> None:
        """Check soon, because tasks were taken."""
        if self._slow:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._slow = True  # tasks taken during this check may need an earlier next one
            pause = self._tick(time.monotonic())
            self._slow = pause is None or pause > MAX_WAIT / LOOKS
            self._wake.wait(pause)
            self._wake.clear()

    def _tick(self, now: float) -> float | None:
        """Check everything in flight. Returns the seconds until the next check, None if nothing is in flight."""
        held = list(self._state.in_flight.held)
        if not held:
            return None
        pause = RUNNING_TICK
        if self._state.in_flight.unstarted:
            pause = min(item.patience for item in held) / LOOKS
            self._give_back(now + pause)
        for item in held:
            if item.limit is not None and item.handler is not None and not item.finished:
                pause = min(pause, max(0.002, item.limit - now))
                if item.limit <= now:
                    self._state.give_up(item, item.handler.rules.time_limit or 0)
        touches: dict[Tube, list[tuple[RunningTask, Move]]] = {}
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
        """Release what has waited too long: all handlers here are busy, and another worker may have a free one."""
        for item in self._state.in_flight.claim_overdue(now):
            self._state.throughput.forget()
            self._state.settler.add(item, settlement.unstarted(item))

    def _touch(self, item: RunningTask, now: float) -> Move | None:
        """The move that extends the lease or stores the progress of a task; None if neither is needed."""
        if item.lost:
            return None
        if item.session != self.session_handle.number:
            self._lose(item)  # the session has ended, and all its leases with it
            return None
        record, progress = item.task._record, item.progress
        if item.new_ttr and item.ttr is not None and item not in self._state.in_flight.unstarted:
            ttr = round(item.ttr * 1000)
            return Move("touch", record.id, item.session, record.lease, progress=progress, ttr=ttr)
        extra = _extension(item, now)
        if not extra and progress == item.told:
            return None
        return Move("touch", record.id, item.session, record.lease, round(extra * 1000), progress=progress)

    def _send(self, tube: Tube, pairs: list[tuple[RunningTask, Move]]) -> None:
        sent = time.monotonic()
        try:
            records = settle(tube.runtime, tube.stored, [move for _, move in pairs])
        except PenstockError as error:
            log.warning("could not extend %d leases: %s", len(pairs), error)
            for item, _ in pairs:
                if item.deadline is not None and item.deadline <= time.monotonic():
                    self._lose(item)
            return
        for (item, move), record in zip(pairs, records, strict=True):
            if record is None:
                self._lose(item)
                continue
            item.told = move.progress
            if move.ttr is not None:
                item.new_ttr, item.deadline = False, sent + move.ttr / 1000
            elif item.deadline is not None:
                item.deadline += move.extra / 1000

    def _lose(self, item: RunningTask) -> None:
        if not item.finished:  # else it may have been settled just now
            log.warning("lost the lease of %r; cancelling its handler", item, extra={"item": item})
            self._state.stats.lost += 1
            item.lose()


def _extension(item: RunningTask, now: float) -> float:
    """Seconds to add to a lease so that a whole ttr is left again; 0 while most of it is left."""
    if item.deadline is None or item.ttr is None or item.deadline - now > item.ttr * EXTEND_AT:
        return 0
    until = now + item.ttr if item.ends is None else min(now + item.ttr, item.ends)
    return max(0.0, until - item.deadline)
