"""The memory store's database: tubes and sessions of one process, behind one lock, gone with it.

A step holds the lock, so nothing changes between what it loads and what it flushes, and no guard can fail. There is no
undo either: a step that raises leaves nothing half done because everything that may be refused (a tube that is gone,
a tube without room, a name in use) is looked at before the first write, in the engine and again at the top of `flush`
and `insert`; what comes after is bookkeeping in dicts and heaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event, Lock, RLock
from types import TracebackType

from msgspec.structs import replace

from penstock.core.ending import Ending
from penstock.core.group import OVER, Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, make_tube
from penstock.core.refusals import tube_missing
from penstock.core.results import LAPSE_MS, STATE_COUNTER, Counts, Description, Lane, Presence, SessionRecord
from penstock.core.task import QUEUED, Entry, Record
from penstock.core.transfer import Kept, Parcel, Tally, arriving, gone, hidden
from penstock.engine import port
from penstock.engine.store import EngineStore
from penstock.errors import UnsupportedOption
from penstock.store.forks import reset_in_child
from penstock.store.memory import looking
from penstock.store.memory.sessions import Session, Sessions
from penstock.store.memory.tube import TubeState


def wall_clock() -> int:
    """This computer's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class MemoryDatabase:
    """All that is kept. Steps read and write it while they hold its lock."""

    remote = False
    shared = False

    def __init__(self, identity: str, clock: Callable[[], int]) -> None:
        self.identity = identity
        self.now = clock
        self.openers = 0
        self.lock = RLock()
        self.tubes: dict[int, TubeState] = {}
        self.by_name: dict[str, TubeState] = {}
        self.sessions = Sessions()
        self.last_tube = 0
        reset_in_child(self)

    def after_fork(self) -> None:
        """A child has a copy of everything, and must not wait for a thread that only the parent has."""
        self.lock = RLock()

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> MemoryStep:
        return MemoryStep(self, now)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        return None

    def bind(self, connection: object) -> port.Database:
        raise UnsupportedOption("memory:// has no transactions to bind to: sqlite:// has")

    def describe(self) -> Description:
        promise = "nothing outlives the last broker of this process"
        return Description("memory", "", self.identity, promise, None, [])

    def wait(self, wake: Event, seconds: float, *, watch: bool) -> bool:
        """Nothing to watch: no other process can reach this store."""
        wake.wait(max(seconds, 0))
        return False

    def close(self) -> None:
        """Once per opener; the last one takes the content with it."""
        with _opening:
            self.openers -= 1
            if self.openers > 0:
                return
            if opened.get(self.identity) is self:
                del opened[self.identity]
        with self.lock:
            self.tubes.clear()
            self.by_name.clear()
            self.sessions = Sessions()


class MemoryStep:
    """One step: `engine.port.Step` says what each method does."""

    __slots__ = ("_db", "_given", "_lock", "now")
    optimistic = False
    follows_up = False

    def __init__(self, db: MemoryDatabase, now: int | None) -> None:
        self._db = db
        self._lock = db.lock
        self._given = now
        self.now = 0

    def __enter__(self) -> MemoryStep:
        self._lock.acquire()
        self.now = self._db.now() if self._given is None else self._given
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def _tube(self, tube: Tube) -> TubeState:
        state = self._db.tubes.get(tube.no)
        if state is None:
            for name in (arriving(tube.name), gone(tube.name)):
                if name in self._db.by_name:
                    raise hidden(self._db.by_name[name].tube)
            raise tube_missing(tube)
        return state

    # tubes

    def tubes(self, names: Sequence[str] | None = None) -> list[port.StoredTube]:
        by_name = self._db.by_name
        found = (by_name[name] for name in sorted(by_name if names is None else names) if name in by_name)
        return [port.StoredTube(state.tube, state.paused) for state in found]

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        db = self._db
        if name in db.by_name:
            return None
        db.last_tube += 1
        tube = make_tube(db.last_tube, name, kind, dict(given))
        db.tubes[tube.no] = db.by_name[name] = TubeState(tube, db.sessions.held)
        return tube

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> bool:
        state = self._db.tubes.get(tube.no)
        if state is None:
            return False
        state.paused = state.paused if paused is None else paused
        old = state.tube
        self._set_row(state, old.no, old.name if name is None else name, old.given if given is None else given)
        return True

    def _set_row(self, state: TubeState, no: int, name: str, given: dict[str, object]) -> None:
        old = state.tube
        del self._db.tubes[old.no], self._db.by_name[old.name]
        state.tube = make_tube(no, name, old.kind, given)
        self._db.tubes[no] = self._db.by_name[name] = state

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        state, waits = self._tube(tube), self._db.sessions.waits
        taken = state.counts["taken"] > 0 and (waiting or tube.kind.leased)
        busy = (taken, waiting and tube.no in waits, bool(state.moving))
        if any(busy):
            return busy
        waits.pop(tube.no, None)
        self._set_row(state, -tube.no, name, given)
        return None

    def forget_tube(self, tube: Tube) -> None:
        state = self._db.tubes.pop(tube.no, None)
        if state is not None:
            del self._db.by_name[state.tube.name]
        self._db.sessions.waits.pop(tube.no, None)

    def clear_tube(self, tube: Tube) -> None:
        state = self._tube(tube)
        self._db.tubes[tube.no] = self._db.by_name[state.tube.name] = TubeState(state.tube, self._db.sessions.held)

    # looking

    def load(self, tube: Tube, select: port.Select, *, data: bool = True) -> port.Loaded:
        return looking.load(self._tube(tube), select, self.now)

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, after: str | None = None,
        above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        state = self._tube(tube)
        if above is not None:
            numbers = [no for no in state.groups if no > above and state.groups[no].state not in OVER]
        elif after is not None:
            numbers = [state.live[name] for name in sorted(state.live) if name > after]
        else:
            numbers = [state.live.get(name, 0) if name is not None else no or 0]
        return [replace(state.groups[no]) for no in numbers[:limit] if no in state.groups]

    def outcome(self, tube: Tube, *, id: int | None = None, address: str | None = None) -> Ending | None:
        return self._tube(tube).outcomes.of(id, address, self.now)

    def outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        return self._tube(tube).outcomes.read(after, limit)

    def tally(self, tube: Tube) -> Tally:
        return self._tube(tube).tally()

    def queue(self, tube: Tube, utube: str) -> Lane:
        queues = self._tube(tube).queues
        there = None if queues is None else queues.by_name.get(utube)
        if there is None:
            return Lane(utube, 0, 0, 0)
        return Lane(utube, there.taken, len(there.heads), there.waiting)

    def ahead(self, tube: Tube, record: Record) -> int:
        return looking.ahead(self._tube(tube), record)

    def next_at(self, tube: Tube) -> int | None:
        return self._next_at([self._tube(tube)])

    def _next_at(self, states: Sequence[TubeState]) -> int | None:
        moments = [self._db.sessions.next_moment(), *[state.next_at(self.now) for state in states]]
        return min([moment for moment in moments if moment is not None], default=None)

    # hot

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        state = self._tube(tube)
        state.must_hold(len(entries))
        records = state.insert(entries, self.now)
        state.gained()
        return records

    def take(self, request: port.Request) -> port.Handed:
        states = [self._tube(tube) for tube in request.tubes]
        sessions, now = self._db.sessions, self.now
        moment = None if request.forced else sessions.next_moment()
        if moment is not None and moment <= now:
            return port.Handed(due=request.tubes[0])
        handle = sessions.handles.get(request.handle)
        if handle is None:
            return port.Handed(next_at=self._next_at(states), alive=False)
        handed = port.Handed()
        for place, state in enumerate(states):
            forced = place < request.forced
            if not forced and state.is_due(now):
                return port.Handed(due=request.tubes[place])
            wanted = request.wanted(place)
            if wanted and not state.paused:
                handed.records = state.lease(wanted, handle.session, request.max_pri, now, forced=forced)
            if handed.records:
                handed.tube = request.tubes[place]
                break
        for tube in request.tubes if request.blocked is not None else ():
            if request.blocked == "enter" and handed.tube is None:
                sessions.wait(request.handle, tube.no)
            elif request.blocked == "leave" or (request.blocked == "stay" and handed.tube is not None):
                sessions.stop_waiting(request.handle, tube.no)
        handed.next_at = self._next_at(states)
        return handed

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        return self._tube(tube).recover(count, elapsed, self.now)

    def ack(self, tube: Tube, moves: Sequence[Move]) -> port.Acked:
        return self._tube(tube).ack(moves, self.now)

    # changes

    def flush(self, delta: port.Delta) -> port.Flushed:
        state, now, rows = self._tube(delta.tube), self.now, delta.rows
        if delta.fresh:
            state.must_hold(len(delta.fresh) - sum(row.after.state == "-" for row in rows))
        for group in delta.groups:
            state.write_group(group.after)
        if state.queues is not None and len(rows) > 1:  # those that wait first, so that none becomes a head on its way
            rows = sorted(rows, key=lambda row: row.before.state != QUEUED)
        for row in rows:
            state.write(row, now)
        if delta.erase_upto is not None:
            state.erase(delta.erase_upto)
        flushed = port.Flushed()
        if delta.fresh:
            flushed.fresh = state.insert(delta.fresh, now)
        for tube, entries in delta.works:
            other = self._tube(tube)
            flushed.works.append((tube, other.insert(entries, now)))
            flushed.readied[tube.no] = other.gained()
        flushed.readied[delta.tube.no] = flushed.readied.get(delta.tube.no, 0) + state.gained()
        return flushed

    def open_group(self, tube: Tube, name: str) -> Group:
        return replace(self._tube(tube).open_group(name, self.now))

    def sweep(self, tube: Tube, limit: int) -> None:
        self._tube(tube).sweep(self.now, limit)

    def import_batch(self, tube: Tube, parcel: Parcel) -> None:
        self._tube(tube).import_batch(parcel, self.now)

    def activate(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> bool:
        state = self._tube(tube)
        if name in self._db.by_name:
            return False
        state.mark = max(state.mark, tally.mark)
        for call in Counts.__struct_fields__:
            if call not in STATE_COUNTER.values() and call != "put":
                state.counts[call] += getattr(tally.counts, call)
        for no, total in totals.items():
            state.groups[no].total = total
        self._set_row(state, tube.no, name, tube.given)
        return True

    # sessions

    def find_session(self, *, id: str | None = None, no: int | None = None) -> port.SessionRow | None:
        sessions = self._db.sessions
        found = sessions.by_no.get(no or 0) if id is None else sessions.by_id.get(id)
        return None if found is None else found.row

    def add_session(self, id: str, ttr: int) -> int:
        return self._db.sessions.add(id, ttr)

    def add_handle(self, presence: Presence, session: int, until: int) -> None:
        self._db.sessions.join(presence, session, until, self.now)

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        beat, now = self._db.sessions.beat, self.now
        return {handle for handle in handles if beat(handle, now, now + lapse_ms)}

    def handles(self, ids: Sequence[str]) -> list[port.HandleRow]:
        return self._db.sessions.rows(list(ids))

    def lapsed(self) -> tuple[list[port.HandleRow], list[int]]:
        return self._db.sessions.lapsed(self.now)

    def remove_handle(self, handle: port.HandleRow, moment: int) -> None:
        self._db.sessions.leave(handle.id, moment)

    def held(self, session: int, limit: int) -> list[tuple[Tube, port.Loaded]]:
        found: dict[int, list[int]] = {}
        for _, no, id in self._held(session)[:limit]:
            found.setdefault(no, []).append(id)
        states = [(self._db.tubes[no], ids) for no, ids in found.items()]
        return [(state.tube, looking.load(state, port.ByIds(ids), self.now)) for state, ids in states]

    def _held(self, session: int) -> list[tuple[str, int, int]]:
        tubes = self._db.tubes
        return sorted((tubes[no].tube.name, no, id) for no, id in self._db.sessions.held.get(session, ()))

    def forget_session(self, session: int) -> None:
        self._db.sessions.forget(session)

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        by_no = self._db.sessions.by_no
        if no is not None:
            return [self._shown(by_no[no], closely=False)] if no in by_no else []
        return [self._shown(session, closely=True) for session in by_no.values() if session.row.end > self.now]

    def _shown(self, session: Session, *, closely: bool) -> SessionRecord:
        newest = session.newest
        assert newest is not None, "a session begins with a handle"
        who, beat = newest.presence, newest.until - LAPSE_MS
        held = [(name, id) for name, _, id in self._held(session.no)] if closely else []
        waits = sorted(name for name, handle in self._waits() if handle in session.handles) if closely else []
        return SessionRecord(session.id, who.host, who.pid, beat, held, list(dict.fromkeys(waits)))

    def _waits(self) -> Iterator[tuple[str, str]]:
        for no, handles in self._db.sessions.waits.items():
            state = self._db.tubes.get(no)
            yield from ((state.tube.name if state is not None else "", handle) for handle in handles)

    # integrity

    def damage(self) -> list[str]:
        return []

    def audit(self, tube: Tube) -> port.Audit:
        return looking.audit(self._tube(tube), self._db.sessions.by_no)

    def restore(self, tube: Tube, record: Record) -> None:
        self._tube(tube).records[record.id] = record

    def rebuild(self, tube: Tube, audit: port.Audit) -> None:
        self._tube(tube).rebuild(audit)

    def drop_outcomes(self, tube: Tube, ids: Sequence[int]) -> None:
        for id in ids:
            self._tube(tube).outcomes.drop(id)

    def stray_waiters(self, *, forget: bool) -> list[tuple[str, str]]:
        sessions = self._db.sessions
        stray = [waiter for waiter in self._waits() if waiter[1] not in sessions.handles]
        for _, handle in stray if forget else ():
            for no in list(sessions.waits):
                sessions.stop_waiting(handle, no, every=True)
        return stray


_opening = Lock()
opened: dict[str, MemoryDatabase] = {}


def open_memory(url: str, clock: Callable[[], int] | None = None) -> EngineStore:
    """The store of that URL in this process, shared by all who opened it and not closed it yet.

    The clock is that of the first opener.
    """
    with _opening:
        database = opened.get(url)
        if database is None:
            database = opened[url] = MemoryDatabase(url, clock or wall_clock)
        database.openers += 1
        return EngineStore(database)
