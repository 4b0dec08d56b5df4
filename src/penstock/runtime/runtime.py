"""What the tubes and sessions of one broker share: its store, its listeners, its keeper, and who waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from penstock.core.options import Tube as StoredTube
from penstock.core.results import Effects, Event
from penstock.core.task import Entry, Home, Record, Task, make_task
from penstock.errors import StoreError, StoreUnavailable, TubeFull
from penstock.operations.operation import Flow, Sleep, Step
from penstock.operations.store_ops import CatchUp
from penstock.runtime.heartbeat import REAP_SECONDS, SCAN_SECONDS, Keeper
from penstock.runtime.liveness import Locks, open_locks
from penstock.runtime.subscriber import Ears
from penstock.runtime.wait_queue import Topic, Waiter, room_of
from penstock.store.contract import PlainStore, TransferStore
from penstock.store.forks import reset_in_child
from penstock.store.wake import HeardStore

log = logging.getLogger("penstock")

OnChange = Callable[[Task, str], object]
T = TypeVar("T")
# All who wait for one end.
_EVERYONE = 2**31


class Member(Protocol):
    """A session, as the hub knows it."""

    handle: str

    def lose(self, handle: str) -> None: ...
    def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Hub:
    """Wakes, tells, beats and reaps for one broker. A forked child begins anew."""

    def __init__(self, store: TransferStore) -> None:
        self.closed = False
        self.room = room_of(store.identity)
        self._store = store
        self._news = store.news if isinstance(store, HeardStore) else None
        self._lock = threading.Lock()
        self._members: set[Member] = set()
        self._waiters: set[Waiter] = set()
        self._keeper = Keeper(self)
        self._locks: Locks | None = None
        self._lockless = False
        self._listeners: dict[int, tuple[Home, OnChange]] = {}
        #: Told of every event of every tube that this broker makes, after it is stored and in whichever thread: a
        #: server's counters and streams. It must be quick and must not raise.
        self.tap: Callable[[Sequence[Event]], object] | None = None
        self._dues: dict[Topic, float] = {}
        self._reaped = 0.0
        self._said = 0.0
        reset_in_child(self)

    @property
    def store(self) -> TransferStore:
        """The store, while the broker is open."""
        if self.closed:
            raise StoreUnavailable("this broker is closed: connect again")
        return self._store

    @property
    def locks(self) -> Locks | None:
        """The OS locks of this store's sessions on this host; None where there can be none."""
        if self._locks is None and self._store.shared and not self._lockless:
            self._locks = open_locks(self._store.identity)
            self._lockless = self._locks is None
        return self._locks

    def close(self) -> None:
        """End every session, then the keeper, then let go of the store. Only the first call does anything."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            members = list(self._members)
        self.room.rouse(list(self._waiters))
        with ExitStack() as ends:  # each of them, also when one fails; last in, first out
            ends.callback(self._store.close)
            ends.callback(self._keeper.stop)
            for member in members:
                ends.callback(member.close)

    def after_fork(self) -> None:
        """In a child: no thread, no lease and no session of the parent's."""
        self._lock = threading.Lock()
        self._keeper = Keeper(self)
        self._dues = {}
        self._waiters = set()
        for member in self._members:
            member.after_fork()
        self._members = set()

    # sessions

    def keep(self, member: Member) -> None:
        """A session has joined: look after it."""
        with self._lock:
            self._members.add(member)
        self._keeper.start()

    def forget(self, member: Member, *, leave: bool) -> None:
        """A session has ended: its handle leaves the store, unless that has ended it, and lets go of its lock."""
        with self._lock:
            self._members.discard(member)
        if leave:
            self.after(self._store.leave([member.handle]))
        if self._locks is not None:
            self._locks.let_go(member.handle)

    def beat(self) -> None:
        """Say that this broker's sessions live; those that the store has ended are lost."""
        with self._lock:
            live = {member.handle: member for member in self._members}
        if live:
            for handle in live.keys() - self.store.beat(list(live)):
                live[handle].lose(handle)

    def reap(self) -> bool:
        """End the sessions of processes of this host that died; True when there were any."""
        self._reaped = time.monotonic()
        if self.locks is None:
            return False
        dead = self.locks.dead()
        if dead:
            self.after(self.store.leave(dead, locus=self.locks.locus))
            for handle in dead:
                self.locks.remove(handle)
        return bool(dead)

    def tend(self) -> bool:
        """Look for dead peers if the last look is a while ago; True when one was found."""
        if not self.store.shared or time.monotonic() - self._reaped < REAP_SECONDS:
            return False
        return self.reap()

    # what a step brought

    def after(self, effects: Effects) -> None:
        """A step is stored: wake who waits for what it brought, and tell who listens."""
        for no, count in effects.readied.items():
            self.room.wake(("ready", no), count)
        for no, count in effects.removed.items():
            self.room.wake(("room", no), count)
        for topic in effects.ended:
            self.room.wake(topic, _EVERYONE)
        if self.tap is not None and effects.events:
            self.tap(effects.events)
        if self._listeners:
            for event in effects.events:
                listener = self._listeners.get(event.tube)
                if listener is not None:
                    _tell(*listener, event.record, event.name)

    def plain_put(self, tube: StoredTube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """The store's short way for puts into this tube that differ from this in their data; tell `arrived` of each."""
        return self._store.plain_put(tube, entry) if isinstance(self._store, PlainStore) else None

    def arrived(self, tube: StoredTube, record: Record) -> None:
        """As `after` and `note_records`, of one task put by the short way."""
        self.room.wake(("ready", tube.no))
        if self.tap is not None or self._listeners:
            self.after(Effects([Event(tube.no, "put", record)]))
        if record.at is not None:
            self.note_records(tube, (record,))

    def listen(self, tube: StoredTube, home: Home, callback: OnChange | None) -> OnChange | None:
        """Set a tube's listener; the previous one."""
        previous = self._listeners.pop(tube.no, None)
        if callback is not None:
            self._listeners[tube.no] = (home, callback)
        return previous[1] if previous else None

    def is_listened(self, tube: StoredTube) -> bool:
        """Whether anybody is told of what happens in a tube."""
        return self.tap is not None or tube.no in self._listeners

    def catch_up(self, tube: StoredTube) -> int | None:
        """Do everything that is due in a tube; so many milliseconds until the next moment."""
        while True:
            advanced = self.store.advance(tube)
            self.after(advanced.effects)
            if not advanced.more:
                return advanced.wait_ms

    def put_when_room(self, tube: StoredTube, put: Step, timeout: float | None) -> Flow[list[Record]]:
        """Put into a full tube as soon as it has room; TubeFull when the time is over."""
        full: list[TubeFull] = []

        def look() -> Flow[list[Record] | None]:
            try:
                records: list[Record] = yield put
            except TubeFull as error:
                full[:] = [error]
                return None
            return records

        records = yield from self.wait_for(("room", tube.no), tube, look, timeout)
        if records is None:
            raise full[0]
        return records

    def wait_for(
        self, topic: Topic, tube: StoredTube, look: Callable[[], Flow[T | None]], timeout: float | None
    ) -> Flow[T | None]:
        """What look gives, once it gives anything; None when the time is over. What is due is done meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        due = 0.0
        waiter = self.enter((topic,))
        self._waiters.add(waiter)
        try:
            while True:
                if due <= time.monotonic():  # not at every change of others: it takes the store's write lock
                    wait_ms: int | None = yield CatchUp(self, tube)
                    due = time.monotonic() + min(SCAN_SECONDS, SCAN_SECONDS if wait_ms is None else wait_ms / 1000)
                    self.note_due((topic,), wait_ms)
                found = yield from look()
                left = None if deadline is None else deadline - time.monotonic()
                if found is not None or (left is not None and left <= 0):
                    return found
                self.room.again(waiter)
                self._keeper.start()
                yield Sleep(waiter, left)
        finally:
            self._waiters.discard(waiter)
            self.room.leave(waiter, None)

    def enter(self, topics: tuple[Topic, ...], max_pri: int | None = None) -> Waiter:
        """Queue up in the room, with an ear for what others change where the store lends one."""
        waiter = self.room.enter(topics, max_pri)
        if self._news is not None:
            waiter.ears = Ears(self.room, self._news)
        return waiter

    # what will be due, for those who wait

    def note_due(self, topics: Sequence[Topic], wait_ms: int | None) -> None:
        """So long until the store must be looked at again for these; None: not known."""
        due = None
        if wait_ms is not None:
            due = time.monotonic() + wait_ms / 1000
            with self._lock:
                for topic in topics:
                    self._dues[topic] = min(due, self._dues.get(topic, due))
        self._keeper.nudge(due)

    def note_records(self, tube: StoredTube, records: Sequence[Record]) -> None:
        """A step left these tasks with a next moment: whoever waits must know it."""
        topic: Topic = ("ready", tube.no)
        if self.room.has(topic) and tube.kind.timed:
            moments = [record.at for record in records if record.at is not None]
            if moments:
                self.note_due((topic,), max(0, min(moments) - self.store.now()))

    def note_outage(self, error: StoreError) -> None:
        """A waiting take, or the end of a `with` block, outlasts it. Said once a second, however many wait."""
        now = time.monotonic()
        if now - self._said >= SCAN_SECONDS:
            self._said = now
            log.warning("a call that waits goes on when the store is back (%s)", error)

    # for the keeper

    def hint_waiters(self) -> None:
        """Something may have changed anywhere."""
        self.room.wake_all()

    def waiters(self) -> int:
        """How much is waited for in this process on this store."""
        return len(self.room)

    def next_due(self) -> float | None:
        """When the next waiter must be woken, by the monotonic clock."""
        with self._lock:
            return min(self._dues.values(), default=None)

    def due_passed(self, now: float) -> None:
        """Wake those whose moment has come."""
        with self._lock:
            passed = [topic for topic, due in self._dues.items() if due <= now]
            for topic in passed:
                del self._dues[topic]
        for topic in passed:
            self.room.wake(topic, hint=True)


def _tell(home: Home, callback: OnChange, record: Record, event: str) -> None:
    try:
        callback(make_task(record, home), event)
    except Exception:
        log.exception("on_change of tube %s failed at %s of task %s", home.name, event, record.id)
