"""What the handles of one broker share: the store, listeners, sessions, the heartbeat and blocked callers."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Protocol, TypeVar

from penstock.core.options import Tube as StoredTube
from penstock.core.results import Effects, Event
from penstock.core.task import Entry, Record, Task, TaskTube, make_task
from penstock.engine.store import Store
from penstock.errors import StoreError, StoreUnavailable, TubeFull
from penstock.operations.operation import Operation, Sleep, StoreOp
from penstock.operations.store_ops import ApplyDueOp
from penstock.runtime.heartbeat import REAP_SECONDS, SCAN_SECONDS, Heartbeat
from penstock.runtime.liveness import Locks, open_locks
from penstock.runtime.store_clock import Watch, clock_of
from penstock.runtime.wait_queue import Topic, Waiter, wait_queue_of
from penstock.system.forks import reset_in_child

log = logging.getLogger("penstock")

OnChange = Callable[[Task, str], object]
T = TypeVar("T")
# Wakes every waiter of a topic.
_EVERYONE = 2**31


class Member(Protocol):
    """A session handle, as the runtime knows it."""

    handle: str

    def lose(self, handle: str) -> None: ...
    def close(self) -> None: ...
    def after_fork(self) -> None: ...


class TubeHandle(Protocol):
    """A handle of a tube, as the runtime knows it."""

    stored: StoredTube

    def _use(self, stored: StoredTube) -> None: ...


class BrokerRuntime:
    """Wakes waiters, calls listeners, sends heartbeats and reaps dead peers for one broker.

    In a forked child it starts again without threads and sessions.
    """

    def __init__(self, store: Store) -> None:
        self.closed = False
        #: The blocked callers of this process on this store.
        self.wait_queue = wait_queue_of(store.identity)
        self._store = store
        self._clock = clock_of(store.identity)
        self._clock.join(self)
        self._lock = threading.Lock()
        self._members: set[Member] = set()
        self._waiters: set[Waiter] = set()
        self._heartbeat = Heartbeat(self)
        self._locks: Locks | None = None
        self._lockless = False
        self._tubes: weakref.WeakSet[TubeHandle] = weakref.WeakSet()
        self._listeners: dict[int, tuple[TaskTube, OnChange]] = {}
        #: Called with every event of every tube that this broker causes, after it is stored and in any thread: for a
        #: server's counters and streams. It must be quick and must not raise.
        self.tap: Callable[[Sequence[Event]], object] | None = None
        self._deadlines: dict[Topic, float] = {}
        self._reaped = 0.0
        self._outage_logged = 0.0
        reset_in_child(self)

    @property
    def store(self) -> Store:
        """The store; StoreUnavailable once the broker is closed."""
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
        """End every session, stop the heartbeat, and close the store. Only the first call does anything."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            members = list(self._members)
        self.wait_queue.wake_waiters(list(self._waiters))
        with ExitStack() as ends:  # each of them, also when one fails; last in, first out
            ends.callback(self._store.close)
            ends.callback(self._heartbeat.stop)
            for member in members:
                ends.callback(member.close)

    def after_fork(self) -> None:
        """In a forked child, forget the threads, leases and sessions of the parent."""
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat(self)
        self._deadlines = {}
        self._waiters = set()
        for member in self._members:
            member.after_fork()
        self._members = set()

    # Sessions.

    def add_session(self, member: Member) -> None:
        """Send heartbeats for a session handle that has joined."""
        with self._lock:
            self._members.add(member)
        self._heartbeat.start()

    def remove_session(self, member: Member, *, leave: bool) -> None:
        """Forget a session handle and release its lock; with `leave`, it also leaves the store."""
        with self._lock:
            self._members.discard(member)
        try:
            if leave:
                self.publish(self._store.leave([member.handle]))
        except StoreError as error:
            log.warning("could not end a session (%s); leaving it to lapse", error)
        finally:
            if self._locks is not None:
                self._locks.release(member.handle)

    def send_heartbeats(self) -> None:
        """Renew this broker's sessions. Marks those that the store has ended as lost."""
        with self._lock:
            live = {member.handle: member for member in self._members}
        if live:
            for handle in live.keys() - self.store.beat(list(live)):
                live[handle].lose(handle)

    def reap(self) -> bool:
        """End the sessions of dead processes of this host. Returns whether there were any."""
        self._reaped = time.monotonic()
        if self.locks is None:
            return False
        dead = self.locks.dead()
        if dead:
            self.publish(self.store.leave(dead, locus=self.locks.locus))
            for handle in dead:
                self.locks.remove(handle)
        return bool(dead)

    def reap_if_due(self) -> bool:
        """Reap dead peers unless that was done a moment ago. Returns whether there were any."""
        if not self.store.shared or time.monotonic() - self._reaped < REAP_SECONDS:
            return False
        return self.reap()

    # After a change is stored.

    def publish(self, effects: Effects, tube: StoredTube | None = None, records: Sequence[Record | None] = ()) -> None:
        """Wake the waiters and call the listeners of a change that is stored. Notes the deadlines of the tasks that it
        stored in `tube`."""
        if self.wait_queue.topics:
            self.wake_callers(effects)
            if tube is not None:
                self._note_records(tube, records)
        if effects.events and (self._listeners or self.tap is not None):
            self.call_listeners(effects.events)

    def wake_callers(self, effects: Effects) -> None:
        """Wake callers that wait for this change, in any broker of this process."""
        for no, count in effects.readied.items():
            self.wait_queue.wake(("ready", no), count)
        for no, count in effects.removed.items():
            self.wait_queue.wake(("room", no), count)
        for topic in effects.ended:
            self.wait_queue.wake(topic, _EVERYONE)

    def call_listeners(self, events: Sequence[Event]) -> None:
        """Call the tap and this broker's listeners."""
        if self.tap is not None:
            self.tap(events)
        if self._listeners:
            for event in events:
                listener = self._listeners.get(event.tube)
                if listener is not None:
                    _call_listener(*listener, event.record, event.name)

    def plain_put(self, tube: StoredTube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """The store's fast path for puts that differ only in their data; call `publish_put` for each of them."""
        return self._store.plain_put(tube, entry)

    def publish_put(self, tube: StoredTube, record: Record) -> None:
        """Do what `publish` does, for one task put by the fast path."""
        if self.wait_queue.topics:
            self.wait_queue.wake(("ready", tube.no))
        if self.tap is not None or self._listeners:
            self.publish(Effects([Event(tube.no, "put", record)]))
        if record.at is not None:
            self._note_records(tube, (record,))

    def set_listener(self, tube: StoredTube, handle: TaskTube, callback: OnChange | None) -> OnChange | None:
        """Set a tube's on_change callback. Returns the previous one."""
        previous = self._listeners.pop(tube.no, None)
        if callback is not None:
            self._listeners[tube.no] = (handle, callback)
        return previous[1] if previous else None

    def has_listener(self, tube: StoredTube) -> bool:
        """Whether events of a tube go to a listener or the tap."""
        return self.tap is not None or tube.no in self._listeners

    def apply_due(self, tube: StoredTube) -> int | None:
        """Apply everything that is due in a tube. Returns the milliseconds until the next deadline, None if none."""
        while True:
            advanced = self.store.advance(tube)
            self.publish(advanced.effects)
            if not advanced.more:
                return advanced.wait_ms

    def apply_all_due(self) -> None:
        """Apply everything that is due in any tube of the store."""
        self._clock.apply_due(self)

    def drive_clock(self) -> float:
        """Like `apply_all_due`, for background threads, which share the work. Returns when to call it again."""
        return self._clock.drive(self)

    def watch_clock(self, watcher: Watch) -> Callable[[], None]:
        """Call the watcher at every check of the store's clock. Returns a function that removes it."""
        return self._clock.watch(watcher)

    # Options that were altered.

    def add_tube(self, handle: TubeHandle) -> None:
        """Register a handle, so that it gets altered options of its tube."""
        with self._lock:
            self._tubes.add(handle)

    def use_tubes(self, tubes: Mapping[int, StoredTube]) -> None:
        """Switch the handles of these tubes to these options."""
        with self._lock:
            handles = list(self._tubes)
        for handle in handles:
            stored = tubes.get(handle.stored.no)
            if stored is not None and stored.given != handle.stored.given:
                handle._use(stored)

    def share_tube(self, stored: StoredTube) -> None:
        """Switch all handles of this process to options that were just stored."""
        self._clock.share({stored.no: stored})

    @property
    def is_stale(self) -> bool:
        """Whether other processes may have altered options that are not yet known here."""
        return time.monotonic() > self._clock.fresh_until

    def refresh_tubes(self) -> None:
        """Reload altered options. Ignores an unavailable store: the next call raises."""
        with suppress(StoreError):
            self._clock.refresh(self)

    def start_background(self) -> None:
        """Start the background thread, which drives the store's clock, if it is not running."""
        self._heartbeat.start()

    # Blocked callers.

    def put_when_not_full(self, tube: StoredTube, put: StoreOp, timeout: float | None) -> Operation[list[Record]]:
        """Put into a full tube as soon as its capacity allows; TubeFull after timeout seconds."""
        full: list[TubeFull] = []

        def attempt() -> Operation[list[Record] | None]:
            try:
                records: list[Record] = yield put
            except TubeFull as error:
                full[:] = [error]
                return None
            return records

        records = yield from self.wait_for(("room", tube.no), tube, attempt, timeout)
        if records is None:
            raise full[0]
        return records

    def wait_for(
        self, topic: Topic, tube: StoredTube, attempt: Callable[[], Operation[T | None]], timeout: float | None
    ) -> Operation[T | None]:
        """Repeat `attempt` at each wake-up until it returns something; None after timeout seconds.

        While it waits, everything due in the tube is applied.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        due = 0.0
        waiter = self.wait_queue.add((topic,))
        self._waiters.add(waiter)
        try:
            while True:
                if due <= time.monotonic():  # not at every change by others, because this takes the store's write lock
                    wait_ms: int | None = yield ApplyDueOp(self, tube)
                    due = time.monotonic() + min(SCAN_SECONDS, SCAN_SECONDS if wait_ms is None else wait_ms / 1000)
                    self.note_deadline((topic,), wait_ms)
                found = yield from attempt()
                left = None if deadline is None else deadline - time.monotonic()
                if found is not None or (left is not None and left <= 0):
                    return found
                self.wait_queue.requeue(waiter)
                self._heartbeat.start()
                yield Sleep(waiter, left)
        finally:
            self._waiters.discard(waiter)
            self.wait_queue.remove(waiter, None)

    # Deadlines that blocked callers must be woken for.

    def note_deadline(self, topics: Sequence[Topic], wait_ms: int | None) -> None:
        """Wake the waiters of these topics in that many milliseconds; None: no deadline is known."""
        deadline = None
        if wait_ms is not None:
            deadline = time.monotonic() + wait_ms / 1000
            with self._lock:
                for topic in topics:
                    self._deadlines[topic] = min(deadline, self._deadlines.get(topic, deadline))
        self._heartbeat.nudge(deadline)

    def _note_records(self, tube: StoredTube, records: Sequence[Record | None]) -> None:
        """Note the deadlines of tasks that were just stored, if anyone waits for the tube."""
        topic: Topic = ("ready", tube.no)
        if topic in self.wait_queue.topics and tube.kind.timed:
            moments = [record.at for record in records if record is not None and record.at is not None]
            if moments:
                self.note_deadline((topic,), max(0, min(moments) - self.store.now()))

    def note_outage(self, error: StoreError) -> None:
        """Log that a blocked call waits for the store; once a second, however many wait."""
        now = time.monotonic()
        if now - self._outage_logged >= SCAN_SECONDS:
            self._outage_logged = now
            log.warning("store unavailable (%s); blocked calls resume when it returns", error)

    # For the heartbeat thread.

    def hint_waiters(self) -> None:
        """Hint the waiters of every topic, because any tube may have changed."""
        self.wait_queue.wake_all()

    def topic_count(self) -> int:
        """The number of topics that callers of this process wait for on this store."""
        return len(self.wait_queue.topics)

    def next_deadline(self) -> float | None:
        """The time at which the next waiter must be woken, by the monotonic clock."""
        with self._lock:
            return min(self._deadlines.values(), default=None)

    def wake_due(self, now: float) -> None:
        """Wake the waiters whose deadline has passed."""
        with self._lock:
            passed = [topic for topic, deadline in self._deadlines.items() if deadline <= now]
            for topic in passed:
                del self._deadlines[topic]
        for topic in passed:
            self.wait_queue.wake(topic, hint=True)


def _call_listener(handle: TaskTube, callback: OnChange, record: Record, event: str) -> None:
    try:
        callback(make_task(record, handle), event)
    except Exception:
        log.exception("on_change of tube %s failed at %s of task %s", handle.name, event, record.id)
