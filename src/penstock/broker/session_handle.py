"""A handle's seat in a session: joined when needed, kept while it lives, and the one place where a take may block."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.broker.tube import Tube, check_max_pri
from penstock.broker.tube_factory import find_tube
from penstock.core import numbers
from penstock.core.names import name as valid_name
from penstock.core.names import shown
from penstock.core.results import Blocked, Joined, Presence, Taken
from penstock.core.shapes import several
from penstock.core.task import Task
from penstock.errors import BadValue, NoSuchTube, NotFound, OutcomeUnknown, PenstockError, StoreError, StoreUnavailable
from penstock.operations.operation import Call, Flow, Sleep
from penstock.operations.take_op import Got, Line, Takes
from penstock.runtime.wait_queue import Topic, Waiter, pauses
from penstock.store.contract import Store

if TYPE_CHECKING:
    from penstock.runtime.runtime import Hub

Stop = Callable[[], bool]


class Seat:
    """One handle of one session. An implicit one, a broker's own, joins at its first take and begins anew when lost."""

    def __init__(self, hub: Hub, *, ttr: int = 0, id: str | None = None, implicit: bool = False) -> None:
        self._hub = hub
        self._ttr = ttr
        self._wanted = id
        self._implicit = implicit
        self._lock = threading.Lock()
        self._joined: Joined | None = None
        self._waiters: set[Waiter] = set()
        self._tubes: dict[str, Tube] = {}
        #: The blocked takes that share their looks, by the key of these.
        self.lines: dict[Hashable, Line] = {}
        self._closed = False
        self._lost = False
        self.handle = ""
        if not implicit:
            self.join()

    @property
    def id(self) -> str:
        """The session's id."""
        return (self._joined or self.join()).id

    @property
    def number(self) -> int:
        """The store's number of the session; 0, which is nobody's, before its first take and once it is lost."""
        return self._joined.session if self._joined and not self._lost else 0

    @property
    def _over(self) -> bool:
        """Closed, or lapsed for good: an implicit session begins anew."""
        return self._closed or (self._lost and not self._implicit)

    def close(self) -> None:
        """Leave the session and wake the blocked takes, which return nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._hub.room.rouse(list(self._waiters))
        if self._joined is not None:
            self._hub.forget(self, leave=not self._lost)

    def join(self) -> Joined:
        """Join, if that has not happened; an implicit session that lapsed begins anew."""
        store = self._hub.store
        with self._lock:
            if self._over:
                which = self._joined.id if self._joined else "of this broker"
                state = "closed" if self._closed else "lapsed"
                raise NotFound(f"session {which} is {state}: begin a new one with broker.session()")
            if self._joined is None or self._lost:
                self._joined = self._join(store)
                self._lost = False
                self._wanted = self._joined.id if not self._implicit else None
            return self._joined

    def _join(self, store: Store) -> Joined:
        handle = uuid4().hex
        locks = self._hub.locks
        locus = locks.hold(handle) if locks is not None else ""
        where = Presence(handle, socket.gethostname(), os.getpid(), locus)
        try:
            joined = store.join(where, self._wanted, self._ttr)
        except BaseException:
            if locks is not None:
                locks.let_go(handle)
            raise
        if self.handle and locks is not None:
            locks.let_go(self.handle)
        self.handle = handle
        self._hub.keep(self)
        return joined

    def lose(self, handle: str) -> None:
        """The store has ended that handle: its leases are dead, its blocked takes take nothing."""
        if self._mark_lost(handle):
            self._hub.room.rouse(list(self._waiters))

    def _mark_lost(self, handle: str) -> bool:
        """Whether it is lost; not where another thread has begun anew since, because that session lives."""
        with self._lock:
            self._lost = self._lost or handle == self.handle
            return self._lost

    def after_fork(self) -> None:
        """In a child: an implicit session begins anew at its first take; an explicit one stays the parent's."""
        self._lock = threading.Lock()
        self._waiters = set()
        self.lines = {}
        if self._implicit:
            self._joined, self.handle = None, ""
        else:
            self._lost = True

    # taking

    def take_first(self, names: Iterable[str], timeout: float | None, max_pri: int | None) -> Flow[Task | None]:
        """The first ready task of the first of these tubes that has one."""
        wanted = [valid_name("tube", name) for name in several("tubes", names)]
        if isinstance(names, str) or not wanted:
            raise BadValue(f"tubes {shown(names)}: give a list of tube names, at least one")
        tubes = [self._tubes[name] for name in wanted if name in self._tubes]
        if len(tubes) < len(wanted):
            tubes = yield Call(lambda: [self._tubes.get(name) or find_tube(self._hub, self, name) for name in wanted])
        for tube in tubes:
            check_max_pri(tube._stored, max_pri)
        try:
            tasks = yield from self.take_tasks(tubes, 1, timeout, max_pri)
        except NoSuchTube:
            if not self._tubes:
                raise
            self._tubes.clear()  # dropped since it was found, and perhaps created anew
            return (yield from self.take_first(wanted, timeout, max_pri))
        self._tubes.update((tube.name, tube) for tube in tubes)
        return tasks[0] if tasks else None

    def take_tasks(
        self, tubes: Sequence[Tube], count: int, timeout: float | None, max_pri: int | None, stop: Stop | None = None
    ) -> Flow[list[Task]]:
        """Lease up to count tasks of the first tube that has any, waiting up to timeout for the first.

        `stop` is asked before and after each sleep, which `stir` ends: where it says True, the waiting is over.
        """
        limit = numbers.timeout(timeout)
        look = Takes(self, tubes, count, max_pri)
        tasks: list[Task]
        tasks, _ = yield look
        if tasks or limit == 0:
            return tasks
        deadline = None if limit is None else time.monotonic() + limit
        return (yield from self._blocked(look, deadline, stop or _never))

    def stir(self) -> None:
        """Have the blocked takes ask their `stop`."""
        self._hub.room.rouse(list(self._waiters))

    def _blocked(self, look: Takes, deadline: float | None, stop: Stop) -> Flow[list[Task]]:
        room = self._hub.room
        topics: tuple[Topic, ...] = tuple(("ready", tube._stored.no) for tube in look.tubes)
        waiter = self._hub.enter(topics, look.max_pri)
        self._waiters.add(waiter)
        got: Topic | None = None
        look.blocks = True
        try:
            while True:
                tasks, taken = yield from self._patiently(look, waiter, deadline, stop)
                if tasks and taken.tube is not None:
                    got = ("ready", taken.tube.no)
                if tasks or not taken.alive:
                    return tasks
                self._hub.note_due(topics, taken.wait_ms)
                left = None if deadline is None else deadline - time.monotonic()
                if self._closed or stop() or (left is not None and left <= 0):
                    return []
                room.again(waiter)
                yield Sleep(waiter, left)  # when the time is over there is one last look
                if stop() or self._closed:
                    return []
        except PenstockError:
            # One that was blocked when its session lapsed takes nothing, whether a look or a beat was told of it.
            if self._closed or self._hub.closed or (self._over and look.registered):
                return []
            raise
        except GeneratorExit:
            look.registered = False  # nobody is left to count it out, but the end of the session
            raise
        finally:
            self._waiters.discard(waiter)
            room.leave(waiter, got)
            if look.registered:
                with contextlib.suppress(PenstockError):
                    yield look.leave()

    def _patiently(self, look: Takes, waiter: Waiter, deadline: float | None, stop: Stop) -> Flow[Got]:
        """One look; while a server is away it is made again, ever less often, until the time is over."""
        between = pauses()
        while True:
            pause = next(between)
            try:
                got: Got = yield look
                return got
            except (StoreUnavailable, OutcomeUnknown) as error:
                late = stop() or (deadline is not None and time.monotonic() + pause > deadline)
                # Whether one that was not counted yet is so now, nobody knows: it must not be counted twice.
                unsure = isinstance(error, OutcomeUnknown) and not look.registered
                if late or unsure or not self.outlasts(error):
                    raise
            yield Sleep(waiter, pause)

    def outlasts(self, error: StoreError) -> bool:
        """Whether a call of this seat that met such an error may be made again later: its server may come back."""
        if self._closed or self._hub.closed or not self._hub.store.remote:
            return False
        self._hub.note_outage(error)
        return True

    def pause(self, seconds: float) -> Flow[None]:
        """Sleep so long, or until the seat is closed."""
        waiter = self._hub.room.enter(())
        self._waiters.add(waiter)
        try:
            yield Sleep(waiter, seconds)
        finally:
            self._waiters.discard(waiter)

    def unregister(self, tubes: Sequence[Tube]) -> None:
        """Nobody of this session waits for these tubes any more."""
        if not self._closed and not self._lost:
            with contextlib.suppress(PenstockError):  # then the registration goes with the session
                self._hub.store.take([tube._stored for tube in tubes], 0, self.handle, blocked="leave")

    def attempt(
        self, tubes: Sequence[Tube], count: int, max_pri: int | None, blocked: Blocked
    ) -> tuple[list[Task], Taken]:
        """One call of the store, made again when its session had lapsed or what it gave cannot be decoded."""
        stored = [tube._stored for tube in tubes]
        while True:
            if self._joined is None or self._lost or self._closed:
                self.join()
            handle = self.handle
            taken = self._hub.store.take(stored, count, handle, max_pri=max_pri, blocked=blocked)
            self._hub.after(taken.effects)
            if taken.alive:
                tasks = self._tasks(tubes, taken)
                if taken.tube is not None:
                    self._hub.note_records(taken.tube, taken.records)
                if tasks or not taken.records:
                    return tasks, taken
            else:
                self._mark_lost(handle)
                if not self._implicit:
                    return [], taken
            if blocked == "stay":  # counted out with the task that came, or with the old session
                blocked = "enter"

    def _tasks(self, tubes: Sequence[Tube], taken: Taken) -> list[Task]:
        for tube in tubes:
            if tube._stored is taken.tube:
                return tube._handed_out(taken.records)
        return []


def _never() -> bool:
    return False
