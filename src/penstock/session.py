"""Sessions: who takes tasks, and the one place where a take may block."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from penstock.core import codec, names, numbers
from penstock.core.lifecycle import Move
from penstock.core.task import Task
from penstock.errors import BadValue, NotFound, PenstockError
from penstock.store.base import Blocked, Joined, Presence, Store, Taken
from penstock.waiting import Topic, Waiter

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.tube import Tube


class SessionInfo(msgspec.Struct, frozen=True):
    """A live session: who it is, when it was last heard of, what it holds and waits for."""

    id: str
    host: str
    pid: int
    heartbeat: float
    held: list[tuple[str, int]]
    waits: list[str]


class Session:
    """Leases belong to it and end with it: at close, at the end of its process, or when its heartbeat lapses.

    A broker has an implicit one. `broker.session()` gives others; several handles may join one by its id, and
    it ends with the last of them.
    """

    def __init__(self, broker: Broker, *, ttr: int = 0, id: str | None = None, implicit: bool = False) -> None:
        self._broker = broker
        self._ttr = ttr
        self._wanted = id
        self._implicit = implicit
        self._lock = threading.Lock()
        self._joined: Joined | None = None
        self._waiters: set[Waiter] = set()
        self._closed = False
        self._lost = False
        self.handle = ""
        if not implicit:
            self.seat()

    @property
    def id(self) -> str:
        """The session's id, a UUID: another process may go on with it by `broker.session(id=…)`."""
        return (self._joined or self.seat()).id

    @property
    def number(self) -> int:
        """The store's number of it; 0, which is nobody's, while it has never taken anything."""
        return self._joined.session if self._joined else 0

    def tube(self, name: str) -> Tube:
        """Open a tube whose takes and settles are this session's."""
        return self._broker.tube_for(self, name)

    def take(self, names: Sequence[str], timeout: float | None = None, *, max_pri: int | None = None) -> Task | None:
        """The first ready task of the first of these tubes that has one; None when nothing came in time."""
        return self._broker.take_for(self, names, timeout, max_pri)

    def close(self) -> None:
        """End it, unless another handle has joined it: what it holds is ready again, after its ttr if it has one."""
        if self._end():
            self._broker.forget_session(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def seat(self) -> Joined:
        """Join, if that has not happened; an implicit session that lapsed begins anew."""
        store = self._broker.store
        with self._lock:
            if self._closed or (self._lost and not self._implicit):
                which = self._joined.id if self._joined else "of this broker"
                state = "closed" if self._closed else "lapsed"
                raise NotFound(f"session {which} is {state}: begin a new one with broker.session()")
            if self._joined is None or self._lost:
                self._joined = self._join(store)
                self._lost = False
                self._wanted = self._joined.id if not self._implicit else None
            return self._joined

    def _join(self, store: Store) -> Joined:
        broker = self._broker
        handle = uuid4().hex
        locks = broker.locks
        if locks is not None:
            locks.hold(handle)
        where = Presence(handle, socket.gethostname(), os.getpid(), locks.locus if locks else "")
        try:
            joined = store.join(where, self._wanted, self._ttr)
        except BaseException:
            if locks is not None:
                locks.let_go(handle)
            raise
        if self.handle and locks is not None:
            locks.let_go(self.handle)
        self.handle = handle
        broker.keep(self)
        return joined

    def lose(self) -> None:
        """The store has ended it: its leases are dead, its blocked takes take nothing."""
        self._lost = True
        self._broker.room.rouse(list(self._waiters))

    def _end(self) -> bool:
        """Leave the store and wake the blocked takes; False when it had ended already."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        self._broker.room.rouse(list(self._waiters))
        if self._joined is not None and not self._lost:
            self._broker.leave(self.handle)
        return True

    def after_fork(self) -> None:
        """In a child: an implicit session begins anew at its first take; an explicit one stays the parent's."""
        self._lock = threading.Lock()
        self._waiters = set()
        if self._implicit:
            self._joined, self.handle = None, ""
        else:
            self._lost = True

    # taking

    def take_tasks(self, tubes: Sequence[Tube], count: int, timeout: float | None, max_pri: int | None) -> list[Task]:
        """Lease up to count tasks of the first tube that has any, waiting up to timeout for the first."""
        timeout = numbers.timeout(timeout)
        tasks, _ = self._attempt(tubes, count, max_pri, None)
        if not tasks and self._broker.tend():
            tasks, _ = self._attempt(tubes, count, max_pri, None)
        if tasks or timeout == 0:
            return tasks
        return self._blocked(tubes, count, None if timeout is None else time.monotonic() + timeout, max_pri)

    def _blocked(self, tubes: Sequence[Tube], count: int, deadline: float | None, max_pri: int | None) -> list[Task]:
        room = self._broker.room
        topics: tuple[Topic, ...] = tuple(("ready", tube.stored.no) for tube in tubes)
        waiter = room.enter(topics, picky=max_pri is not None)
        self._waiters.add(waiter)
        got: Topic | None = None
        registered = False
        try:
            while True:
                tasks, taken = self._attempt(tubes, count, max_pri, "stay" if registered else "enter")
                registered = taken.alive and not tasks
                if tasks and taken.tube is not None:
                    got = ("ready", taken.tube.no)
                if tasks or not taken.alive:
                    return tasks
                self._broker.note_due(topics, taken.wait_ms)
                if not self._sleep(waiter, deadline):
                    return []
        except PenstockError:
            if self._closed or self._broker.closed:
                return []
            raise
        finally:
            self._waiters.discard(waiter)
            room.leave(waiter, got)
            if registered:
                self._unregister(tubes)

    def _sleep(self, waiter: Waiter, deadline: float | None) -> bool:
        """Until woken, or the time is over, so that there is one last look; then False, and at the session's end."""
        self._broker.room.again(waiter)
        left = None if deadline is None else deadline - time.monotonic()
        if self._closed or (left is not None and left <= 0):
            return False
        self._broker.nudge()
        waiter.sleep(left)
        return not self._closed

    def _unregister(self, tubes: Sequence[Tube]) -> None:
        if not self._closed and not self._lost:
            with contextlib.suppress(PenstockError):  # then the registration goes with the session
                self._broker.store.take([tube.stored for tube in tubes], 0, self.handle, blocked="leave")

    def _attempt(
        self, tubes: Sequence[Tube], count: int, max_pri: int | None, blocked: Blocked
    ) -> tuple[list[Task], Taken]:
        """One call of the store, made again when its session had lapsed or what it gave cannot be decoded."""
        stored = [tube.stored for tube in tubes]
        while True:
            self.seat()
            taken = self._broker.store.take(stored, count, self.handle, max_pri=max_pri, blocked=blocked)
            self._broker.after(taken.effects)
            if taken.alive:
                tasks = self._tasks(tubes, taken)
                if tasks or not taken.records:
                    return tasks, taken
            else:
                self._lost = True
                if not self._implicit:
                    return [], taken
            if blocked == "stay":  # counted out with the task that came, or with the old session
                blocked = "enter"

    def _tasks(self, tubes: Sequence[Tube], taken: Taken) -> list[Task]:
        """What was taken, for people; a task whose data cannot be decoded is buried and left out."""
        tasks = []
        for record in taken.records:
            home = next(tube for tube in tubes if tube.stored is taken.tube)
            try:
                tasks.append(Task(record, home, codec.decode(record.payload), leased=True))
            except BadValue as error:
                home.settle(Move("bury", record.id, lease=record.lease, reason=str(error)))
        return tasks


def session_id(value: object) -> str | None:
    """A session's id as callers may give it."""
    return None if value is None else names.name("session id", value)
