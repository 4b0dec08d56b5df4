"""Extends the leases of running tasks, notices lost ones, stores progress, and enforces time limits of threads.

Tasks that wait too long to start are released.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from penstock.broker.session import SessionHandle
from penstock.broker.tube import Tube
from penstock.core.group import CANCELLED, CANCELLING
from penstock.core.lifecycle import Move
from penstock.core.options import Tube as StoredTube
from penstock.core.results import Lease
from penstock.errors import NoSuchTube, PenstockError, StoreError
from penstock.operations.store_ops import settle
from penstock.worker import settlement
from penstock.worker.running_task import MAX_WAIT, RunningTask
from penstock.worker.state import WorkerState

log = logging.getLogger("penstock.worker")

# A lease is extended when a third of it is over: two attempts may fail before it lapses.
EXTEND_AT = 2 / 3
# Checks within the time that a task may wait to start; it is released one check early.
CHECKS_PER_WAIT = 4
# Seconds between checks while something runs: progress is stored with that delay.
RUNNING_TICK = 0.2
# Checks per lease.
CHECKS_PER_LEASE = 6
# Seconds between queries whether the leases of running tasks are still held: a loss is noticed within a second.
CHECK = 0.8


class LeaseExtender:
    """Extends leases in one thread. All leases of a tube that are due are extended in one store call."""

    def __init__(self, state: WorkerState, session_handle: SessionHandle, on_tick: Callable[[], None]) -> None:
        self._state = state
        self.session_handle = session_handle
        self._on_tick = on_tick
        self._wake = threading.Event()
        self._check_at: float | None = None  # when to check for lost leases; None while nothing is in flight
        self._slow = True  # sleeping for longer than a task may wait to start
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

    def check_soon(self) -> None:
        """Check for lost leases at the next tick."""
        self._check_at = 0.0

    def _run(self) -> None:
        while not self._stopping:
            self._slow = True  # tasks taken during this check may need an earlier next one
            pause = self._tick(time.monotonic())
            self._slow = pause is None or pause > MAX_WAIT / CHECKS_PER_WAIT
            self._wake.wait(pause)
            self._wake.clear()

    def _tick(self, now: float) -> float | None:
        """Check everything in flight. Returns the seconds until the next check, None if nothing is in flight."""
        held = list(self._state.in_flight.held)
        if not held:
            self._check_at = None
            return None
        pause = RUNNING_TICK
        if self._state.in_flight.unstarted:
            pause = min(item.patience for item in held) / CHECKS_PER_WAIT
            self._release_overdue(now + pause)
        for item in list(self._state.in_flight.limited):
            if item.limit is not None and item.handler is not None:
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
        self._check_leases(now)
        self._on_tick()
        shortest = min((item.ttr for item in held if item.ttr is not None), default=60)
        checks = CHECK if self._check_at is None else max(0.002, self._check_at - now)
        return min(pause, checks, max(0.002, shortest / CHECKS_PER_LEASE))

    def _check_leases(self, now: float) -> None:
        """If due, check in one query whether the leases of all running tasks are still held."""
        if self._check_at is None:  # just taken
            self._check_at = now + CHECK
        if now < self._check_at:
            return
        self._check_at = now + CHECK
        session = self.session_handle.number
        running = [item for item in list(self._state.in_flight.running.values()) if item.session == session]
        running = [item for item in running if not (item.lost or item.finished)]
        leases = [Lease(item.tube.stored, item.record.id, item.record.lease) for item in running]
        if not leases:
            return
        try:
            held = self.session_handle.runtime.store.held(session, leases)
        except StoreError as error:
            log.warning("could not check %d leases (%s); retrying", len(leases), error)
            return
        self._lose([item for item, holds in zip(running, held, strict=True) if not holds])

    def _release_overdue(self, now: float) -> None:
        """Release tasks that have waited too long to start: another worker may have a free slot."""
        for item in self._state.in_flight.claim_overdue(now):
            self._state.throughput.forget()
            self._state.settler.add(item, settlement.unstarted(item))

    def _touch(self, item: RunningTask, now: float) -> Move | None:
        """The move that extends the lease or stores the progress of a task; None if neither is needed."""
        if item.lost:
            return None
        if item.session != self.session_handle.number:
            self._notify(item, "lapsed")  # the session has ended, and all its leases with it
            return None
        record, progress = item.record, item.progress
        if item.new_ttr and item.ttr is not None and item not in self._state.in_flight.unstarted:
            ttr = round(item.ttr * 1000)
            return Move("touch", record.id, item.session, record.lease, progress=progress, ttr=ttr)
        extra = _extension(item, now)
        if not extra and progress == item.stored_progress:
            return None
        return Move("touch", record.id, item.session, record.lease, round(extra * 1000), progress=progress)

    def _send(self, tube: Tube, pairs: list[tuple[RunningTask, Move]]) -> None:
        sent = time.monotonic()
        try:
            records = settle(tube.runtime, tube.stored, [move for _, move in pairs])
        except PenstockError as error:
            log.warning("could not extend %d leases (%s); retrying", len(pairs), error)
            for item, _ in pairs:
                if item.deadline is not None and item.deadline <= time.monotonic():
                    self._notify(item, "lapsed")
            return
        lost: list[RunningTask] = []
        for (item, move), record in zip(pairs, records, strict=True):
            if record is None:
                lost.append(item)
                continue
            item.stored_progress = move.progress
            if move.ttr is not None:
                item.new_ttr, item.deadline = False, sent + move.ttr / 1000
            elif item.deadline is not None:
                item.deadline += move.extra / 1000
        self._lose(lost)

    def _lose(self, items: Sequence[RunningTask]) -> None:
        """Notify handlers that their leases are lost, and why. Needs at most three queries per tube."""
        tubes: dict[Tube, list[RunningTask]] = {}
        for item in items:
            if not _is_settled(item):
                tubes.setdefault(item.tube, []).append(item)
        for tube, lost in tubes.items():
            try:
                causes = self._causes(tube.stored, lost)
            except NoSuchTube:
                causes = ["deleted"] * len(lost)
            except StoreError as error:
                log.warning("could not look up why %d leases were lost (%s); retrying", len(lost), error)
                continue
            for item, cause in zip(lost, causes, strict=True):
                self._notify(item, cause)

    def _causes(self, tube: StoredTube, items: Sequence[RunningTask]) -> list[str]:
        """How each lease was lost."""
        store, now = self.session_handle.runtime.store, time.monotonic()
        found = {record.id: record for record in store.get(tube, [_id(item) for item in items]) if record is not None}
        gone = [item for item in items if _id(item) not in found]
        outcomes = store.outcomes(tube, [_id(item) for item in gone]) if gone else []
        endings = {_id(item): found.ending for item, found in zip(gone, outcomes, strict=True)}
        unexplained = {item.record.group_no for item in gone if endings[_id(item)] is None} - {None}
        groups = [group for no in unexplained for group in store.groups(tube, no=no)]
        cancelled = {group.no for group in groups if group.state in (CANCELLING, CANCELLED)}
        sessions = {item.session for item in items if _id(item) in found}
        live = {session for session in sessions if store.sessions(session)}

        def cause(item: RunningTask) -> str:
            record, ending = found.get(_id(item)), endings.get(_id(item))
            if record is None:
                is_cancelled = ending.status == "cancelled" if ending else item.record.group_no in cancelled
                return "cancelled" if is_cancelled else "deleted"
            if record.state == "!":
                return "buried"
            late = item.deadline is not None and item.deadline <= now
            return "lapsed" if late or item.session not in live else "released"

        return [cause(item) for item in items]

    def _notify(self, item: RunningTask, cause: str) -> None:
        if not _is_settled(item):  # otherwise it was settled a moment ago
            log.warning("lost the lease of %r (%s); stopping its handler", item, cause, extra={"item": item})
            self._state.stats.count("lost", item)
            item.lose(cause)


def _id(item: RunningTask) -> int:
    return item.record.id


def _is_settled(item: RunningTask) -> bool:
    return item.finished or item.settled


def _extension(item: RunningTask, now: float) -> float:
    """Seconds to add to a lease so that a whole ttr is left again; 0 while most of it is left."""
    if item.deadline is None or item.ttr is None or item.deadline - now > item.ttr * EXTEND_AT:
        return 0
    until = now + item.ttr if item.ends is None else min(now + item.ttr, item.ends)
    return max(0.0, until - item.deadline)
