"""The handle a program holds on one store, and what its tubes and sessions share."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Unpack

from penstock.core import names
from penstock.core.kind import find_kind
from penstock.core.numbers import span_ms
from penstock.core.options import Tube as StoredTube
from penstock.core.options import TubeOptions, check_tube_options
from penstock.core.task import Entry, Record, Task, make_task
from penstock.errors import BadValue, NoSuchTube, StoreUnavailable, TubeFull, TubeMismatch, UnsupportedOption
from penstock.keeper import REAP_SECONDS, Keeper
from penstock.presence import Locks
from penstock.session import Session, SessionInfo, session_id
from penstock.stats import TubeInfo
from penstock.store.base import Effects, Finding, Store, Stored
from penstock.store.forks import reset_in_child
from penstock.store.open import open_store
from penstock.tube import OnChange, Tube, check_max_pri
from penstock.waiting import Topic, room_of

log = logging.getLogger("penstock")

DEFAULT_URL = "sqlite:///penstock.db"
DEFAULT_KIND = "fifottl"


def connect(url: str | None = None, *, pool: str | None = None, clock: Callable[[], int] | None = None) -> Broker:
    """Open the store that a URL names: PENSTOCK_URL when none is given, else one SQLite file, penstock.db.

    `clock` replaces the store's clock, for tests.
    """
    if url is None:
        url = os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    if pool is not None:
        raise UnsupportedOption("pool= needs a Redis store in front: this version has sqlite:// and memory://")
    return Broker(open_store(url, clock))


class Broker:
    """Opens tubes and sessions on one store. Safe to use from several threads; a forked child begins anew."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.room = room_of(store.identity)
        self._lock = threading.Lock()
        self._implicit = Session(self, implicit=True)
        self._sessions: set[Session] = set()
        self._keeper = Keeper(self)
        self._locks: Locks | None = None
        self._listeners: dict[int, tuple[Tube, OnChange]] = {}
        self._known: dict[str, StoredTube] = {}
        self._dues: dict[Topic, float] = {}
        self._reaped = 0.0
        self.closed = False
        reset_in_child(self)

    @property
    def store(self) -> Store:
        """The store, while the broker is open."""
        if self.closed:
            raise StoreUnavailable("this broker is closed: connect again")
        return self._store

    # tubes

    def tube(self, name: str, kind: str | None = None, **options: Unpack[TubeOptions]) -> Tube:
        """Open a tube, and create it (default kind fifottl) when it is missing.

        TubeMismatch when the stored one has another kind or option than asked for.
        """
        return self.tube_for(self._implicit, name, kind, options)

    def create_tube(self, name: str, kind: str = DEFAULT_KIND, **options: Unpack[TubeOptions]) -> Tube:
        """Create a tube; TubeExists when it is there."""
        declared = find_kind(kind)
        given = check_tube_options(declared, options)
        stored = self.store.save_tube(names.name("tube", name), declared, given, exist_ok=False)
        return Tube(self, self._implicit, stored)

    def tubes(self) -> list[TubeInfo]:
        """All tubes of the store, by name."""
        return [TubeInfo(tube.name, tube.kind.name, dict(tube.given)) for tube in self.store.load_tubes()]

    def tube_for(
        self, session: Session, name: str, kind: str | None = None, options: TubeOptions | None = None
    ) -> Tube:
        """Open a tube for a session, as `tube` says."""
        asked = options or {}
        stored = self.store.load_tube(names.name("tube", name))
        if stored is None:
            declared = find_kind(DEFAULT_KIND if kind is None else kind)
            given = check_tube_options(declared, asked)
            stored = self.store.save_tube(name, declared, given, exist_ok=True)
        _must_match(stored, kind, asked)
        return Tube(self, session, stored)

    # taking

    def take(self, names: Sequence[str], timeout: float | None = None, *, max_pri: int | None = None) -> Task | None:
        """The first ready task of the first of these tubes that has one; None when nothing came in time."""
        return self._implicit.take(names, timeout, max_pri=max_pri)

    def take_for(
        self, session: Session, wanted: Sequence[str], timeout: float | None, max_pri: int | None
    ) -> Task | None:
        """Take for a session, as `take` says."""
        if isinstance(wanted, str) or not wanted:
            raise BadValue(f"tubes {names.shown(wanted)}: give a list of tube names, at least one")
        tubes = [self._existing(session, names.name("tube", name)) for name in wanted]
        for tube in tubes:
            check_max_pri(tube.stored, max_pri)
        try:
            tasks = session.take_tasks(tubes, 1, timeout, max_pri)
        except NoSuchTube:
            if not self._known:
                raise
            self._known.clear()  # dropped since it was loaded, and perhaps created anew
            return self.take_for(session, wanted, timeout, max_pri)
        for tube in tubes:
            self.note_tasks(tube.stored, [task for task in tasks if task.tube == tube.name])
        return tasks[0] if tasks else None

    def _existing(self, session: Session, name: str) -> Tube:
        stored = self._known.get(name) or self.store.load_tube(name)
        if stored is None:
            raise NoSuchTube(f"tube {name} does not exist: create it first with broker.tube({name!r})")
        self._known[name] = stored
        return Tube(self, session, stored)

    # sessions

    def session(self, ttr: float = 0, id: str | None = None) -> Session:
        """Begin a session, or with id join a live one; NotFound when that is unknown or has lapsed.

        After its end its tasks stay taken for ttr seconds, for whoever joins it in that time.
        """
        session = Session(self, ttr=span_ms("ttr", ttr), id=session_id(id))
        with self._lock:
            self._sessions.add(session)
        return session

    def sessions(self) -> list[SessionInfo]:
        """The live sessions of the store, all hosts', oldest first."""
        self.tend()
        return [
            SessionInfo(found.id, found.host, found.pid, found.heartbeat / 1000, found.held, found.waits)
            for found in self.store.sessions()
        ]

    def check(self, repair: bool = False) -> list[Finding]:
        """Cross-check everything stored: every state that must not exist, and what mends it; repair mends it."""
        return self.store.check(repair)

    def close(self) -> None:
        """Release what its sessions still hold, wake their blocked takes, and let go of the store."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            sessions = [*self._sessions, self._implicit]
        try:
            for session in sessions:
                session.close()
        finally:
            self._keeper.stop()
            self._store.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def after_fork(self) -> None:
        """In a child: no thread, no lease and no session of the parent's."""
        self._lock = threading.Lock()
        self._keeper = Keeper(self)
        self._dues = {}
        for session in (*self._sessions, self._implicit):
            session.after_fork()
        self._sessions = set()

    # for tubes and sessions

    @property
    def locks(self) -> Locks | None:
        """The OS locks of this store's sessions on this host; None where no other process can have any."""
        if self._locks is None and self._store.shared:
            self._locks = Locks(self._store.identity)
        return self._locks

    def keep(self, session: Session) -> None:
        """A session has joined: look after it."""
        with self._lock:
            self._sessions.add(session)
        self._keeper.start()

    def forget_session(self, session: Session) -> None:
        """A session has ended."""
        with self._lock:
            self._sessions.discard(session)

    def leave(self, handle: str) -> None:
        """End a handle in the store, and its lock."""
        self.after(self._store.leave([handle]))
        if self.locks is not None:
            self.locks.let_go(handle)

    def after(self, effects: Effects) -> None:
        """A step is stored: wake who waits for what it brought, and tell who listens."""
        for no, count in effects.readied.items():
            self.room.wake(("ready", no), count)
        for no, count in effects.removed.items():
            self.room.wake(("room", no), count)
        if self._listeners:
            for event in effects.events:
                listener = self._listeners.get(event.tube)
                if listener is not None:
                    self._tell(*listener, event.record, event.name)

    def _tell(self, tube: Tube, callback: OnChange, record: Record, event: str) -> None:
        try:
            callback(make_task(record, tube), event)
        except Exception:
            log.exception("on_change of tube %s failed at %s of task %s", tube.name, event, record.id)

    def listen(self, tube: Tube, callback: OnChange | None) -> OnChange | None:
        """Set a tube's listener; the previous one."""
        previous = self._listeners.pop(tube.stored.no, None)
        if callback is not None:
            self._listeners[tube.stored.no] = (tube, callback)
        return previous[1] if previous else None

    def catch_up(self, tube: StoredTube) -> int | None:
        """Do everything that is due in a tube; so many milliseconds until the next moment."""
        while True:
            advanced = self.store.advance(tube)
            self.after(advanced.effects)
            if not advanced.more:
                return advanced.wait_ms

    def tend(self) -> bool:
        """Look for dead peers if the last look is a while ago; True when one was found."""
        if not self.store.shared or time.monotonic() - self._reaped < REAP_SECONDS:
            return False
        return self.reap()

    def put_when_room(self, tube: StoredTube, entries: Sequence[Entry], timeout: float | None) -> Stored:
        """Put into a full tube as soon as it has room; TubeFull when the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        topic: Topic = ("room", tube.no)
        waiter = self.room.enter((topic,))
        try:
            while True:
                wait_ms = self.catch_up(tube)
                try:
                    return self.store.put(tube, entries)
                except TubeFull:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise
                self.room.again(waiter)
                self._keeper.start()
                self.note_due((topic,), wait_ms)
                waiter.sleep(left)
        finally:
            self.room.leave(waiter, None)

    # what will be due, for those who wait

    def note_due(self, topics: Sequence[Topic], wait_ms: int | None) -> None:
        """So long until the store must be looked at again for these."""
        if wait_ms is None:
            return
        due = time.monotonic() + wait_ms / 1000
        with self._lock:
            for topic in topics:
                self._dues[topic] = min(due, self._dues.get(topic, due))
        self.nudge()

    def note_records(self, tube: StoredTube, records: Sequence[Record]) -> None:
        """A step left these tasks with a next moment: whoever waits must know it."""
        topic: Topic = ("ready", tube.no)
        if self.room.has(topic) and tube.kind.timed:
            moments = [record.at for record in records if record.at is not None]
            if moments:
                self.note_due((topic,), max(0, min(moments) - self.store.now()))

    def note_tasks(self, tube: StoredTube, tasks: Sequence[Task]) -> None:
        """As note_records, for tasks just taken."""
        if tasks and self.room.has(("ready", tube.no)):
            self.note_records(tube, [task.record for task in tasks])

    # for the keeper

    def nudge(self) -> None:
        """The keeper's plan may have changed."""
        self._keeper.nudge()

    def beat(self) -> None:
        """Say that this broker's sessions live; those that the store has ended are lost."""
        with self._lock:
            live = {session.handle: session for session in self._sessions if session.handle}
        if live:
            for handle in live.keys() - self.store.beat(list(live)):
                live[handle].lose()

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

    def hint_waiters(self) -> None:
        """Something may have changed anywhere."""
        self.room.wake_all()

    def waiters(self) -> int:
        """How many wait in this process on this store."""
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


def _must_match(stored: StoredTube, kind: str | None, asked: TubeOptions) -> None:
    if kind is not None and stored.kind != find_kind(kind):
        raise TubeMismatch(
            f"tube {stored.name} is of kind {stored.kind.name}, not {names.shown(kind)}: open it without a kind, "
            "or choose another name"
        )
    given = check_tube_options(stored.kind, asked)
    for option, value in asked.items():
        if value is not None and given.get(option) != stored.given.get(option):
            raise TubeMismatch(
                f"tube {stored.name} has {option}={stored.given.get(option)!r}, not {value!r}: open it without "
                f"{option}, or drop and create it anew"
            )
