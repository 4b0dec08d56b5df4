"""The memory store: one lock around tubes and sessions. Rules are core's; bookkeeping is the tube's and sessions'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Lock, RLock

from penstock.core.address import linked
from penstock.core.ending import Ending
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.reply import reply_payload
from penstock.core.task import QUEUED, Entry, Record
from penstock.errors import UnsupportedOption
from penstock.store import base
from penstock.store.forks import reset_in_child
from penstock.store.memory import check, looking
from penstock.store.memory.linked import LinkedCalls
from penstock.store.memory.moving import MovingCalls
from penstock.store.memory.sessions import Session, Sessions
from penstock.store.memory.step import Step
from penstock.store.memory.tube import TubeState
from penstock.store.memory.unleased import UnleasedCalls
from penstock.store.moving import is_hidden
from penstock.store.refusals import refuse_busy, tube_exists


def wall_clock() -> int:
    """This computer's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class MemoryStore(LinkedCalls, UnleasedCalls, MovingCalls):
    """Tasks in this process's memory, gone with it. `store.base.Store` says what each method promises."""

    shared = False
    remote = False

    def __init__(self, identity: str, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock or wall_clock)
        self.identity = identity
        self._opens = 1
        reset_in_child(self)

    def close(self) -> None:
        """Once per opener; the last one takes the content with it."""
        with _opening:
            self._opens -= 1
            if self._opens > 0:
                return
            if _opened.get(self.identity) is self:
                del _opened[self.identity]
        with self._lock:
            self._tubes.clear()
            self._by_name.clear()
            self._sessions = Sessions()

    def opened_again(self) -> None:
        """One more opener, who will close it."""
        self._opens += 1

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        with self._lock:
            there = self._by_name.get(name)
            if there is None:
                self._must_not_hide(name)
                there = self._add_tube(name, kind, given)
            elif not exist_ok:
                raise tube_exists(name)
            return there.tube

    def load_tube(self, name: str) -> Tube | None:
        with self._lock:
            there = self._by_name.get(name)
            if there is None:
                self._must_not_hide(name)
            return None if there is None else there.tube

    def load_tubes(self) -> list[Tube]:
        with self._lock:
            return [self._by_name[name].tube for name in sorted(self._by_name) if not is_hidden(name)]

    def drop_tube(self, tube: Tube) -> base.Effects:
        with self._lock:
            state, step = self._state(tube), self._step(None)
            self._advance(state, None, step)
            self._put_works(step)
            refuse_busy(tube, taken=state.counts["taken"], waiting=self._sessions.waits.get(tube.no))
            del self._tubes[tube.no], self._by_name[tube.name]
            for record in state.records.values():
                if record.reply_to not in (None, tube.name):
                    step.works.append((record.reply_to, reply_payload(record, Ending("deleted"))))
            return self._effects(step)

    def pause_tube(self, tube: Tube, paused: bool) -> None:
        with self._lock:
            self._state(tube).paused = paused

    def paused(self, tube: Tube) -> bool:
        with self._lock:
            return self._state(tube).paused

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> base.Stored:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            if linked(entries):
                return base.Stored(state.put_planned(entries, step), self._effects(step))
            state.must_hold(len(entries))
            return base.Stored(state.put(entries, step), self._effects(step))

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: base.Blocked = None, now: int | None = None,
    ) -> base.Taken:  # fmt: skip
        with self._lock:
            states, step = [self._state(tube) for tube in tubes], self._step(now)
            self._end_sessions(step)
            known = self._sessions.handles.get(handle)
            if known is None:
                return base.Taken(None, [], self._wait_ms(states, step.now), False, self._effects(step))
            tube, records = self._lease(states, count, known.session.no, max_pri, step)
            self._register(states, handle, blocked, bool(records))
            return base.Taken(tube, records, self._wait_ms(states, step.now), True, self._effects(step))

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> base.Settled:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            return base.Settled([state.settle(move, step) for move in moves], self._effects(step))

    def kick(self, tube: Tube, count: int, *, now: int | None = None) -> base.Settled:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            self._advance(state, None, step)
            return base.Settled(list(state.kick(count, step)), self._effects(step))

    def release_all(self, tube: Tube, *, now: int | None = None) -> base.Settled:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            self._advance(state, None, step)  # a lease that is over lapses, it is not released
            return base.Settled(list(state.release(sorted(state.apart["t"]), step)), self._effects(step))

    def advance(self, tube: Tube, *, limit: int = base.ADVANCE_STEP, now: int | None = None) -> base.Advanced:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            more = self._advance(state, limit, step)
            return base.Advanced(more, self._wait_ms([state], step.now), self._effects(step))

    def truncate(self, tube: Tube, *, now: int | None = None) -> base.Settled:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            # Those behind their micro-queue first, so that none of them becomes ready on the way.
            ids = [id for id, record in state.records.items() if record.state == QUEUED]
            ids += [id for id, record in state.records.items() if record.state != QUEUED]
        gone: list[Record] = []
        for start in range(0, len(ids), base.ADVANCE_STEP):
            with self._lock:
                gone += self._state(tube).delete(ids[start : start + base.ADVANCE_STEP], step)
                self._put_works(step)
        gone.sort(key=lambda record: record.id)
        return base.Settled(list(gone), self._effects(step))

    def get(self, tube: Tube, ids: Sequence[int], *, now: int | None = None) -> list[Record | None]:
        with self._lock:
            return looking.get(self._state(tube), ids, self._time(now))

    def find(
        self, tube: Tube, status: str | None, after: int | None, limit: int, *, now: int | None = None
    ) -> list[Record]:
        with self._lock:
            return looking.find(self._state(tube), status, max(after or 0, 0), limit, self._time(now))

    def count(self, tube: Tube) -> base.Counts:
        with self._lock:
            return base.Counts(**self._state(tube).counts)

    # sessions

    def join(self, presence: base.Presence, session: str | None, ttr: int, *, now: int | None = None) -> base.Joined:
        with self._lock:
            joined = self._sessions.join(presence, session, ttr, self._time(now))
            return base.Joined(joined.no, joined.id)

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        with self._lock:
            moment = self._time(now)
            return {handle for handle in handles if self._sessions.beat(handle, moment)}

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> base.Effects:
        with self._lock:
            step = self._step(now)
            self._end_sessions(step)
            for name in handles:
                handle = self._sessions.handles.get(name)
                if handle is not None and locus in (None, handle.presence.locus):
                    self._sessions.part(name, step.now)
            self._end_sessions(step)
            return self._effects(step)

    def sessions(self, *, now: int | None = None) -> list[base.SessionRecord]:
        with self._lock:
            moment = self._time(now)
            live = (session for session in self._sessions.by_no.values() if session.end > moment)
            return [self._shown(session, closely=True) for session in live]

    # looking closer

    def ahead(self, tube: Tube, record: Record) -> int:
        with self._lock:
            return looking.ahead(self._state(tube), record)

    def lane(self, tube: Tube, utube: str) -> base.Lane:
        with self._lock:
            return looking.lane(self._state(tube), utube)

    def lane_holders(self, tube: Tube, utube: str, limit: int) -> list[Record]:
        with self._lock:
            return looking.lane_holders(self._state(tube), utube, limit)

    def owner(self, session: int) -> base.SessionRecord | None:
        with self._lock:
            known = self._sessions.by_no.get(session)
            return None if known is None else self._shown(known, closely=False)

    def check(self, repair: bool, *, now: int | None = None) -> list[base.Finding]:
        with self._lock:
            states = [self._by_name[name] for name in sorted(self._by_name) if not is_hidden(name)]
            step = self._step(now)
            findings = check.check(states, self._sessions, repair, step)
            self._put_works(step)
            return findings

    def after_fork(self) -> None:
        """A child has a copy of everything, and must not wait for a thread that only the parent has."""
        self._lock = RLock()

    def bind(self, connection: object) -> base.Store:
        raise UnsupportedOption("memory:// has no transactions to bind to: sqlite:// has")

    def describe(self) -> base.Description:
        promise = "nothing outlives the last broker of this process"
        return base.Description("memory", "", self.identity, promise, None, [])

    def now(self) -> int:
        return self._clock()

    # waiting

    def wait(self, wake: Event, seconds: float, *, watch: bool) -> bool:
        """Nothing to watch: no other process can reach this store."""
        wake.wait(max(seconds, 0))
        return False

    # inside

    def _advance(self, state: TubeState, limit: int | None, step: Step) -> bool:
        self._end_sessions(step)
        return state.advance(limit, step)

    def _lease(
        self, states: Iterable[TubeState], count: int, session: int, max_pri: int | None, step: Step
    ) -> tuple[Tube | None, list[Record]]:
        for state in states:
            state.advance(base.ADVANCE_STEP, step)
            self._put_works(step)  # what follows from it may be what is taken
            records = [] if state.paused else state.lease(count, session, max_pri, step)
            if records:
                return state.tube, records
        return None, []

    def _register(self, states: Iterable[TubeState], handle: str, blocked: base.Blocked, came: bool) -> None:
        """Count a blocked take in or out."""
        for state in states:
            if blocked == "enter" and not came:
                self._sessions.wait(handle, state.tube.no)
            elif blocked == "leave" or (blocked == "stay" and came):
                self._sessions.wait_over(handle, state.tube.no)

    def _end_sessions(self, step: Step) -> None:
        """Release what lapsed sessions held, in every tube."""
        for session in self._sessions.ended(step.now):
            held = ((self._tubes[tube].tube.name, tube, id) for tube, id in self._sessions.held[session.no])
            for _, tube, id in sorted(held):
                self._tubes[tube].release([id], step)
            self._sessions.forget(session)

    def _shown(self, session: Session, *, closely: bool) -> base.SessionRecord:
        held: list[tuple[str, int]] = []
        waits: set[str] = set()
        if closely:
            held = sorted((self._tubes[tube].tube.name, id) for tube, id in self._sessions.held[session.no])
            waits = {self._tubes[tube].tube.name for handle in session.handles.values() for tube in handle.waits}
        newest = session.newest
        assert newest is not None  # it began with a handle
        who, beat = newest.presence, newest.lapse - base.LAPSE_MS
        return base.SessionRecord(session.id, who.host, who.pid, beat, held, sorted(waits))


_opening = Lock()
_opened: dict[str, MemoryStore] = {}


def open_memory(url: str, clock: Callable[[], int] | None = None) -> MemoryStore:
    """The store of that URL in this process, shared by all who opened it and not closed it yet.

    The clock is that of the first opener.
    """
    with _opening:
        store = _opened.get(url)
        if store is None:
            store = _opened[url] = MemoryStore(url, clock)
        else:
            store.opened_again()
        return store
