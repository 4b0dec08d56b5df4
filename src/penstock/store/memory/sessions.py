"""Who takes tasks: sessions, their handles, what these wait for, and when they end."""

from __future__ import annotations

from uuid import uuid4

from penstock.store.base import LAPSE_MS, Presence, lapsed
from penstock.store.memory.heap import LazyHeap


class Session:
    """A session. `until` is its end, once no handle is left; `last` is then the handle that left last."""

    __slots__ = ("handles", "id", "last", "no", "ttr", "until")

    def __init__(self, no: int, ttr: int) -> None:
        self.no = no
        self.id = str(uuid4())
        self.ttr = ttr
        self.handles: dict[str, Handle] = {}
        self.until: int | None = None
        self.last: Handle | None = None

    @property
    def newest(self) -> Handle | None:
        """The handle heard of last."""
        return max(self.handles.values(), key=lambda handle: handle.lapse, default=self.last)

    @property
    def end(self) -> int:
        """When it ends if nobody beats or joins it, whether or not its lapsed handles have been let go."""
        if self.until is not None:
            return self.until
        return self.ttr + max((handle.lapse for handle in self.handles.values()), default=0)


class Handle:
    """One handle in a session. `waits` counts its blocked takes by tube number."""

    __slots__ = ("lapse", "presence", "session", "waits")

    def __init__(self, presence: Presence, session: Session) -> None:
        self.presence = presence
        self.session = session
        self.lapse = 0
        self.waits: dict[int, int] = {}


class Sessions:
    """All sessions. Ending one is the store's work: this says which, and forgets it afterwards."""

    def __init__(self) -> None:
        self.by_no: dict[int, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.handles: dict[str, Handle] = {}
        self.held: dict[int, set[tuple[int, int]]] = {}
        self.waits: dict[int, set[str]] = {}  # tube number -> handles
        self._last_no = 0
        self._lapses: LazyHeap[tuple[int, str]] = LazyHeap(self._lapses_then)
        self._ends: LazyHeap[tuple[int, int]] = LazyHeap(self._ends_then)

    def join(self, presence: Presence, session: str | None, ttr: int, now: int) -> Session:
        """Begin a session or go on with one. A handle that was elsewhere leaves there."""
        joined = self._begin(ttr) if session is None else self.by_id.get(session)
        if joined is None or (session is not None and joined.end <= now):
            raise lapsed(session)
        former = self.handles.get(presence.handle)
        if former is not None and former.session is not joined:
            self.part(presence.handle, now)
        joined.until = None
        handle = joined.handles.setdefault(presence.handle, Handle(presence, joined))
        self.handles[presence.handle] = handle
        self._hear(handle, now)
        return joined

    def beat(self, name: str, now: int) -> bool:
        """Hear of a handle; False when it is unknown or has lapsed."""
        handle = self.handles.get(name)
        if handle is None or handle.lapse <= now:
            return False
        self._hear(handle, now)
        return True

    def part(self, name: str, moment: int) -> None:
        """A handle goes at that moment, with its waits; the last one of a session starts the session's end."""
        handle = self.handles.get(name)
        if handle is None:
            return
        for tube in list(handle.waits):
            self.stop_waiting(name, tube)
        del self.handles[name]
        session = handle.session
        del session.handles[name]
        if not session.handles:
            session.last = handle
            session.until = moment + session.ttr
            self._ends.push((session.until, session.no), len(self.by_no))

    def ended(self, now: int) -> list[Session]:
        """Let lapsed handles go, and answer the sessions whose end has come, earliest first."""
        while (lapse := self._lapses.first()) is not None and lapse[0] <= now:
            self.part(lapse[1], lapse[0])
        over: list[Session] = []
        while (end := self._ends.first()) is not None and end[0] <= now:
            self._ends.pop()
            session = self.by_no[end[1]]
            over.append(session)
            self.by_id.pop(session.id)
            self.by_no.pop(session.no)
        return over

    def forget(self, session: Session) -> None:
        """The tasks of an ended session have been released."""
        self.held.pop(session.no, None)

    def next_moment(self) -> int | None:
        """When a handle lapses or a session ends next."""
        lapse, end = self._lapses.first(), self._ends.first()
        return min((first[0] for first in (lapse, end) if first is not None), default=None)

    def wait(self, name: str, tube: int) -> None:
        """One more take of the handle waits on that tube."""
        waits = self.handles[name].waits
        waits[tube] = waits.get(tube, 0) + 1
        self.waits.setdefault(tube, set()).add(name)

    def wait_over(self, name: str, tube: int) -> None:
        """One take less waits there."""
        handle = self.handles.get(name)
        if handle is not None and handle.waits.get(tube, 0) > 1:
            handle.waits[tube] -= 1
        else:
            self.stop_waiting(name, tube)

    def stop_waiting(self, name: str, tube: int) -> None:
        """No take of the handle waits there any more."""
        if (handle := self.handles.get(name)) is not None:
            handle.waits.pop(tube, None)
        if (waiting := self.waits.get(tube)) is not None:
            waiting.discard(name)
            if not waiting:
                del self.waits[tube]

    def _begin(self, ttr: int) -> Session:
        self._last_no += 1
        session = Session(self._last_no, ttr)
        self.by_no[session.no] = session
        self.by_id[session.id] = session
        self.held[session.no] = set()
        return session

    def _hear(self, handle: Handle, now: int) -> None:
        handle.lapse = now + LAPSE_MS
        self._lapses.push((handle.lapse, handle.presence.handle), len(self.handles))

    def _lapses_then(self, entry: tuple[int, str]) -> bool:
        handle = self.handles.get(entry[1])
        return handle is not None and handle.lapse == entry[0]

    def _ends_then(self, entry: tuple[int, int]) -> bool:
        session = self.by_no.get(entry[1])
        return session is not None and session.until == entry[0]
