"""Who takes tasks: sessions, their handles, what they hold and wait for."""

from __future__ import annotations

import msgspec

from penstock.core.results import Presence
from penstock.engine.port import HandleRow, SessionRow
from penstock.store.memory.heap import LazyHeap


class Handle(msgspec.Struct):
    """One handle of a session: lapsed from `until` on."""

    presence: Presence
    session: int
    until: int


class Session(msgspec.Struct):
    """A session. `until` is its end, once no handle is left; `last` is then the one that left last."""

    no: int
    id: str
    ttr: int
    handles: dict[str, Handle] = msgspec.field(default_factory=dict)
    until: int | None = None
    last: Handle | None = None

    @property
    def newest(self) -> Handle | None:
        """The handle heard of last."""
        return max(self.handles.values(), key=lambda handle: handle.until, default=self.last)

    @property
    def row(self) -> SessionRow:
        """As the engine knows it."""
        newest = self.newest if self.handles else None
        return SessionRow(self.no, self.id, self.ttr, self.until, 0 if newest is None else newest.until)


class Sessions:
    """All sessions, handles and waits."""

    def __init__(self) -> None:
        self.by_no: dict[int, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.handles: dict[str, Handle] = {}
        self.held: dict[int, set[tuple[int, int]]] = {}  # session -> (tube number, task id)
        self.waits: dict[int, dict[str, int]] = {}  # tube number -> blocked takes by handle
        self._last_no = 0
        self._lapses: LazyHeap[tuple[int, str]] = LazyHeap(self._lapses_then)
        self._ends: LazyHeap[tuple[int, int]] = LazyHeap(self._ends_then)

    def add(self, id: str, ttr: int) -> int:
        """A new session; its number."""
        self._last_no += 1
        session = self.by_no[self._last_no] = self.by_id[id] = Session(self._last_no, id, ttr)
        self.held[session.no] = set()
        return session.no

    def forget(self, no: int) -> None:
        """An ended session that holds nothing."""
        del self.by_id[self.by_no.pop(no).id], self.held[no]

    def join(self, presence: Presence, no: int, until: int, now: int) -> None:
        """A handle joins a session; one that was elsewhere leaves there."""
        former = self.handles.get(presence.handle)
        if former is not None and former.session != no:
            self.leave(presence.handle, now)
        session = self.by_no[no]
        session.until = None
        handle = session.handles.setdefault(presence.handle, Handle(presence, no, until))
        self.handles[presence.handle] = handle
        self._hear(handle, until)

    def beat(self, name: str, now: int, until: int) -> bool:
        """Hear of a handle; False when it is unknown or has lapsed."""
        handle = self.handles.get(name)
        if handle is None or handle.until <= now:
            return False
        self._hear(handle, until)
        return True

    def leave(self, name: str, moment: int) -> None:
        """A handle goes at that moment, with its waits; the last one of a session sets the session's end."""
        handle = self.handles.pop(name, None)
        if handle is None:
            return
        for tube in list(self.waits):
            self.stop_waiting(name, tube, every=True)
        session = self.by_no[handle.session]
        del session.handles[name]
        if not session.handles:
            session.last, session.until = handle, moment + session.ttr
            self._ends.push((session.until, session.no), len(self.by_no))

    def lapsed(self, now: int) -> tuple[list[HandleRow], list[int]]:
        """Handles and sessions whose time is over, earliest first."""
        names = [name for _, name in self._lapses.head(len(self.handles), (now, "\U0010ffff"))]
        return self.rows(names), [no for _, no in self._ends.head(len(self.by_no), (now, self._last_no))]

    def rows(self, names: list[str]) -> list[HandleRow]:
        """The handles with these names."""
        known = ((name, self.handles[name]) for name in names if name in self.handles)
        return [HandleRow(name, handle.session, handle.presence.locus, handle.until) for name, handle in known]

    def next_moment(self) -> int | None:
        """When a handle lapses or a session ends next."""
        lapse, end = self._lapses.first(), self._ends.first()
        if lapse is None or end is None:
            return end[0] if end is not None else None if lapse is None else lapse[0]
        return min(lapse[0], end[0])

    def wait(self, name: str, tube: int) -> None:
        """One more take of the handle waits on that tube."""
        waits = self.waits.setdefault(tube, {})
        waits[name] = waits.get(name, 0) + 1

    def stop_waiting(self, name: str, tube: int, *, every: bool = False) -> None:
        """One take less of the handle waits there, or none at all."""
        waits = self.waits.get(tube, {})
        if waits.get(name, 0) > 1 and not every:
            waits[name] -= 1
        elif waits.pop(name, None) is not None and not waits:
            del self.waits[tube]

    def _hear(self, handle: Handle, until: int) -> None:
        handle.until = until
        self._lapses.push((until, handle.presence.handle), len(self.handles))

    def _lapses_then(self, entry: tuple[int, str]) -> bool:
        handle = self.handles.get(entry[1])
        return handle is not None and handle.until == entry[0]

    def _ends_then(self, entry: tuple[int, int]) -> bool:
        session = self.by_no.get(entry[1])
        return session is not None and session.until == entry[0]
