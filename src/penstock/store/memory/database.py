"""The memory store's database: tubes and sessions of one process, behind one lock, gone with it.

A step holds the lock, so nothing changes between what it loads and what it flushes, and no guard can fail. There is no
undo either: whatever may be refused (a tube that is gone or full, a name in use) is looked at before the first write,
in the engine and again at the top of `flush` and `insert`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Event, Lock, RLock
from types import TracebackType

import msgspec
from msgspec.structs import replace

from penstock.core.group import CANCELLING, OVER, Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, changed_options, make_tube
from penstock.core.refusals import tube_full, tube_missing
from penstock.core.results import (
    STATE_COUNTER,
    Counts,
    Description,
    Effects,
    Lane,
    Lease,
    Presence,
    SessionRecord,
)
from penstock.core.task import QUEUED, Entry, Record
from penstock.core.transfer import Kept, Parcel, Tally, arriving, gone, hidden
from penstock.engine import port
from penstock.engine.lapse import LAPSE_MS
from penstock.engine.lost_takes import LostTakes
from penstock.engine.store import EngineStore
from penstock.errors import UnsupportedOption
from penstock.store.forks import reset_in_child
from penstock.store.memory import looking
from penstock.store.memory.tube import TubeState

_AHEAD_LIMIT = 1000


def wall_clock() -> int:
    """This computer's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Handle(msgspec.Struct):
    """One handle of a session: lapsed from `until` on."""

    presence: Presence
    session: int
    until: int


class Session(msgspec.Struct):
    """A session. `until` is its end, once no handle is left; `last` is the handle that joined or left last."""

    no: int
    id: str
    ttr: int
    until: int | None = None
    last: Handle | None = None


class MemoryDatabase:
    """Everything that is stored. Steps read and write it while they hold its lock."""

    remote = False
    shared = False

    def __init__(self, identity: str, clock: Callable[[], int]) -> None:
        self.identity = identity
        self.now = clock
        self.openers = 0
        self.lost = LostTakes()
        self.lock = RLock()
        self.last_tube = self.last_session = 0
        self.clear()
        reset_in_child(self)

    def clear(self) -> None:
        """Forget everything."""
        self.tubes: dict[int, TubeState] = {}
        self.by_name: dict[str, TubeState] = {}
        self.sessions: dict[int, Session] = {}
        self.handles: dict[str, Handle] = {}
        self.waits: dict[int, Counter[str]] = {}  # tube number -> blocked takes by handle
        self.altered = 0
        self.next_end: int | None = None  # when a handle lapses or a session ends next

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
        """Close it for one opener. The content goes with the last one."""
        with _opening:
            self.openers -= 1
            if self.openers > 0:
                return
            if opened.get(self.identity) is self:
                del opened[self.identity]
        with self.lock:
            self.clear()


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
        db.tubes[tube.no] = db.by_name[name] = TubeState(tube)
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

    def alter_tube(self, tube: Tube, changes: Mapping[str, object]) -> Tube | None:
        state = self._db.tubes.get(tube.no)
        if state is None:
            return None
        self.write_tube(tube, given=changed_options(state.tube.given, changes))
        self._db.altered += 1
        return state.tube

    def _set_row(self, state: TubeState, no: int, name: str, given: dict[str, object]) -> None:
        old = state.tube
        del self._db.tubes[old.no], self._db.by_name[old.name]
        state.tube = make_tube(no, name, old.kind, given)
        self._db.tubes[no] = self._db.by_name[name] = state

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        state, waits = self._tube(tube), self._db.waits
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
        self._db.waits.pop(tube.no, None)

    def clear_tube(self, tube: Tube) -> None:
        state = self._tube(tube)
        self._db.tubes[tube.no] = self._db.by_name[state.tube.name] = TubeState(state.tube)

    # looking

    def load(self, tube: Tube, select: port.Select, *, data: bool = True) -> port.Loaded:
        return looking.load(self._tube(tube), select, self.now)

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, newest: str | None = None,
        after: str | None = None, above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        state = self._tube(tube)
        if newest is not None:
            numbers = [no for no in reversed(state.groups) if state.groups[no].name == newest][:1]
        elif above is not None:
            numbers = [no for no in state.groups if no > above and state.groups[no].state not in OVER]
        elif after is not None:
            numbers = [state.live[name] for name in sorted(state.live) if name > after]
        else:
            numbers = [state.live.get(name, 0) if name is not None else no or 0]
        return [replace(state.groups[no]) for no in numbers[:limit] if no in state.groups]

    def outcome(self, tube: Tube, *, id: int | None = None, address: str | None = None) -> Kept | None:
        state = self._tube(tube)
        kept = state.outcomes.get(state.last_outcome.get(address or "", 0) if id is None else id)
        return None if kept is None or kept.until <= self.now else kept

    def holds(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        return [self._holds(session, *lease) for lease in leases]

    def _holds(self, session: int, tube: Tube, id: int, lease: int) -> bool:
        state = self._db.tubes.get(tube.no)
        record = None if state is None else state.records.get(id)
        if state is None or record is None or (record.state, record.owner, record.lease) != ("t", session, lease):
            return False
        group = state.groups.get(record.group_no or 0)
        return (record.at is None or record.at > self.now) and (group is None or group.state != CANCELLING)

    def outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        outcomes = self._tube(tube).outcomes
        return [outcomes[id] for id in sorted(id for id in outcomes if id > after)[:limit]]

    def tally(self, tube: Tube) -> Tally:
        return self._tube(tube).tally()

    def queue(self, tube: Tube, utube: str) -> Lane:
        found = self._tube(tube).queues.get(utube)
        return Lane(utube, *((0, 0, 0) if found is None else found.counted))

    def ahead(self, tube: Tube, record: Record) -> int:
        place, ready = (record.rank1, record.rank2, record.id), self._tube(tube).by_state["r"]
        return sum(key < place for key in islice(ready, _AHEAD_LIMIT))

    def next_at(self, tube: Tube) -> int | None:
        return self._next_at([self._tube(tube)])

    def overdue(self) -> tuple[list[port.StoredTube], bool, str]:
        due = [name for name, state in self._db.by_name.items() if state.tube.no > 0 and state.is_due(self.now)]
        end = self._db.next_end
        return self.tubes(due), end is not None and end <= self.now, str(self._db.altered)

    def _next_at(self, states: Sequence[TubeState]) -> int | None:
        moments = [self._db.next_end, *[state.next_at(self.now) for state in states]]
        return min([moment for moment in moments if moment is not None], default=None)

    # hot

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        state = self._tube(tube)
        _must_hold(state, len(entries))
        records = state.insert(entries, self.now)
        state.gained = 0
        return records

    def take(self, request: port.Request) -> port.Handed:
        states = [self._tube(tube) for tube in request.tubes]
        db, now = self._db, self.now
        if not request.forced and db.next_end is not None and db.next_end <= now:
            return port.Handed(due=request.tubes[0])
        handle = db.handles.get(request.handle)
        if handle is None:
            return port.Handed(next_at=self._next_at(states), alive=False)
        handed = port.Handed()
        for place, state in enumerate(states):
            if place >= request.forced and (moment := state.due_at()) is not None and moment <= now:
                return port.Handed(due=request.tubes[place])
            wanted = request.wanted(place)
            if wanted and not state.paused:
                handed.records = state.take(wanted, handle.session, port.new_call(), request.max_pri, now)
            if handed.records:
                handed.tube = request.tubes[place]
                break
        for tube in request.tubes if request.blocked is not None else ():
            if request.blocked == "enter" and handed.tube is None:
                db.waits.setdefault(tube.no, Counter())[request.handle] += 1
            elif request.blocked == "leave" or (request.blocked == "stay" and handed.tube is not None):
                self._stop_waiting(request.handle, tube.no, 1)
        handed.next_at = self._next_at(states)
        return handed

    def _stop_waiting(self, handle: str, tube: int, takes: int | None = None) -> None:
        """Count so many blocked takes of a handle less, or all of them."""
        waits = self._db.waits.get(tube, Counter[str]())
        waits[handle] -= waits[handle] if takes is None else takes
        self._db.waits[tube] = +waits  # without what is zero or below
        if not self._db.waits[tube]:
            del self._db.waits[tube]

    def undo_lost(self, effects: Effects, *, again: bool) -> None:
        """No answer is lost within a process."""

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        return self._tube(tube).recover(count, elapsed, self.now)

    def ack(self, tube: Tube, moves: Sequence[Move]) -> port.Acked:
        return self._tube(tube).ack(moves, self.now)

    # changes

    def flush(self, delta: port.Delta) -> port.Flushed:
        state, now, rows = self._tube(delta.tube), self.now, delta.rows
        if delta.fresh:
            _must_hold(state, len(delta.fresh) - sum(row.after.state == "-" for row in rows))
        for group in delta.groups:
            state.write_group(group.after)
        if delta.tube.kind.per_utube and len(rows) > 1:  # waiting ones first, so that none becomes a head between
            rows = sorted(rows, key=lambda row: row.before.state != QUEUED)
        for row in rows:
            state.write(row, now)
        for id in list(state.above(0, delta.erase_upto)) if delta.erase_upto is not None else ():
            state.by_address.pop(state.records.pop(id).address or "", None)
        flushed = port.Flushed()
        if delta.fresh:
            flushed.fresh = state.insert(delta.fresh, now)
        for tube, entries in delta.works:
            flushed.works.append((tube, self._tube(tube).insert(entries, now)))
        for tube in (delta.tube, *(tube for tube, _ in delta.works)):
            changed = self._tube(tube)
            flushed.readied[tube.no] = flushed.readied.get(tube.no, 0) + changed.gained
            changed.gained = 0
        return flushed

    def open_group(self, tube: Tube, name: str) -> Group:
        state = self._tube(tube)
        if name not in state.live:
            state.sweep(self.now, 2)
            state.last_group += 1
            state.write_group(Group(state.last_group, name))
        return replace(state.groups[state.live[name]])

    def sweep(self, tube: Tube, limit: int) -> None:
        self._tube(tube).sweep(self.now, limit)

    def import_batch(self, tube: Tube, parcel: Parcel) -> None:
        state = self._tube(tube)
        for kept in parcel.outcomes:
            state.keep(kept)
        new = parcel.above(state.last_id)
        for record in new.records:
            state.skip_to(record.id - 1)
            state.last_id = record.id
            state.counts["put"] += 1
            state.add(record, self.now)
        for no, count in new.members.items():
            state.groups[no].total += count
            state.groups[no].left += count
        state.skip_to(parcel.upto)
        state.counts["delay"] -= new.due

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

    # sessions: there are few, so they are searched

    def find_session(self, *, id: str | None = None, no: int | None = None) -> port.SessionRow | None:
        sessions = self._db.sessions
        found = sessions.get(no or 0) if id is None else next((s for s in sessions.values() if s.id == id), None)
        return None if found is None else self._row(found)

    def _row(self, session: Session) -> port.SessionRow:
        lapse = max((handle.until for handle in self._handles_of(session)), default=0)
        return port.SessionRow(session.no, session.id, session.ttr, session.until, lapse)

    def _handles_of(self, session: Session) -> list[Handle]:
        return [handle for handle in self._db.handles.values() if handle.session == session.no]

    def add_session(self, id: str, ttr: int) -> int:
        self._db.last_session = no = self._db.last_session + 1
        self._db.sessions[no] = Session(no, id, ttr)
        return no

    def add_handle(self, presence: Presence, session: int, until: int) -> None:
        former = self._db.handles.get(presence.handle)
        if former is not None and former.session != session:
            self._leave(former, self.now)
        handle = self._db.handles[presence.handle] = Handle(presence, session, until)
        joined = self._db.sessions[session]
        joined.until, joined.last = None, handle
        self._find_next_end()

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        known = {name: handle for name in handles if (handle := self._db.handles.get(name)) is not None}
        alive = {name: handle for name, handle in known.items() if handle.until > self.now}
        for handle in alive.values():
            handle.until = self.now + lapse_ms
        self._find_next_end()
        return set(alive)

    def _find_next_end(self) -> None:
        ends = [handle.until for handle in self._db.handles.values()]
        ends += [session.until for session in self._db.sessions.values() if session.until is not None]
        self._db.next_end = min(ends, default=None)

    def handles(self, ids: Sequence[str]) -> list[port.HandleRow]:
        known = ((id, self._db.handles[id]) for id in ids if id in self._db.handles)
        return [port.HandleRow(id, handle.session, handle.presence.locus, handle.until) for id, handle in known]

    def lapsed(self) -> tuple[list[port.HandleRow], list[int]]:
        db, now = self._db, self.now
        if db.next_end is None or db.next_end > now:
            return [], []
        handles = sorted((handle.until, name) for name, handle in db.handles.items() if handle.until <= now)
        ends = ((session.until, no) for no, session in db.sessions.items() if session.until is not None)
        return self.handles([name for _, name in handles]), [no for until, no in sorted(ends) if until <= now]

    def remove_handle(self, handle: port.HandleRow, moment: int) -> None:
        found = self._db.handles.get(handle.id)
        if found is not None:
            self._leave(found, moment)
            self._find_next_end()

    def _leave(self, handle: Handle, moment: int) -> None:
        del self._db.handles[handle.presence.handle]
        for tube in list(self._db.waits):
            self._stop_waiting(handle.presence.handle, tube)
        session = self._db.sessions[handle.session]
        if not self._handles_of(session):
            session.last, session.until = handle, moment + session.ttr

    def held(self, session: int, limit: int) -> list[tuple[Tube, port.Loaded]]:
        found: dict[int, list[int]] = {}
        for state, id in islice(self._held(session), limit):
            found.setdefault(state.tube.no, []).append(id)
        states = [(self._db.tubes[no], ids) for no, ids in found.items()]
        return [(state.tube, looking.load(state, port.ByIds(ids), self.now)) for state, ids in states]

    def _held(self, session: int) -> Iterator[tuple[TubeState, int]]:
        for _, state in sorted(self._db.by_name.items()):
            for id in sorted(key[-1] for key in state.by_state["t"].within(session)):
                yield state, id

    def forget_session(self, session: int) -> None:
        del self._db.sessions[session]
        self._find_next_end()

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        sessions = self._db.sessions
        if no is not None:
            return [self._shown(sessions[no], closely=False)] if no in sessions else []
        live = [session for session in sessions.values() if self._row(session).end > self.now]
        return [self._shown(session, closely=True) for session in live]

    def _shown(self, session: Session, *, closely: bool) -> SessionRecord:
        handles = self._handles_of(session)
        newest = max(handles, key=lambda handle: handle.until, default=session.last)
        assert newest is not None, "a session begins with a handle"
        held: list[tuple[str, int]] = []
        waits: set[str] = set()
        if closely:
            names = {handle.presence.handle for handle in handles}
            held = [(state.tube.name, id) for state, id in self._held(session.no)]
            waits = {name for name, handle in self._waits() if handle in names}
        who = newest.presence
        return SessionRecord(session.id, who.host, who.pid, newest.until - LAPSE_MS, held, sorted(waits))

    def _waits(self) -> Iterator[tuple[str, str]]:
        for no, handles in self._db.waits.items():
            state = self._db.tubes.get(no)
            yield from (("" if state is None else state.tube.name, handle) for handle in handles)

    # integrity

    def damage(self) -> list[str]:
        return []

    def audit(self, tube: Tube) -> port.Audit:
        return looking.audit(self._tube(tube), self._db.sessions)

    def restore(self, tube: Tube, record: Record) -> None:
        self._tube(tube).records[record.id] = record

    def rebuild(self, tube: Tube, audit: port.Audit) -> None:
        self._tube(tube).rebuild(audit)

    def drop_outcomes(self, tube: Tube, ids: Sequence[int]) -> None:
        for id in ids:
            self._tube(tube).drop_outcome(id)

    def stray_waiters(self, *, forget: bool) -> list[tuple[str, str]]:
        stray = [(name, handle) for name, handle in self._waits() if handle not in self._db.handles]
        for _, handle in stray if forget else ():
            for no in list(self._db.waits):
                self._stop_waiting(handle, no)
        return stray


def _must_hold(state: TubeState, more: int) -> None:
    """TubeFull if there is no room for that many more tasks."""
    capacity, stored = state.tube.capacity, len(state.records)
    if capacity is not None and more > 0 and stored + more > capacity:
        raise tube_full(state.tube, stored, more)


_opening = Lock()
opened: dict[str, MemoryDatabase] = {}


def open_memory(url: str, clock: Callable[[], int] | None = None) -> EngineStore:
    """The store of that URL in this process, shared by all who opened it and have not closed it yet.

    The clock is that of the first opener.
    """
    with _opening:
        database = opened.get(url)
        if database is None:
            database = opened[url] = MemoryDatabase(url, clock or wall_clock)
        database.openers += 1
        return EngineStore(database)
