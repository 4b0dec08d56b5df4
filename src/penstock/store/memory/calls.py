"""What the calls of the memory store share: the lock, the clock, the tubes, and how a step ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock

from penstock.core.entry import plain_entry
from penstock.core.kind import Kind
from penstock.core.options import Tube, make_tube
from penstock.core.reply import REPLY_KIND
from penstock.store import base
from penstock.store.memory.sessions import Sessions
from penstock.store.memory.step import Step
from penstock.store.memory.tube import TubeState
from penstock.store.moving import arriving, gone, hidden
from penstock.store.refusals import tube_missing


class Calls:
    """All that is kept. Whoever calls these holds the lock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = RLock()
        self._last_no = 0
        self._tubes: dict[int, TubeState] = {}
        self._by_name: dict[str, TubeState] = {}
        self._sessions = Sessions()

    def _time(self, now: int | None) -> int:
        return self._clock() if now is None else now

    def _step(self, now: int | None) -> Step:
        return Step(self._time(now))

    def _effects(self, step: Step) -> base.Effects:
        """What a step did, once the replies and group work that follow from it are put."""
        self._put_works(step)
        return step.effects()

    def _put_works(self, step: Step) -> None:
        while step.works:
            name, payload = step.works.popleft()
            state = self._by_name.get(name) or self._add_tube(name, REPLY_KIND, {})
            state.put([plain_entry(state.tube, payload)], step)

    def _state(self, tube: Tube) -> TubeState:
        state = self._tubes.get(tube.no)
        if state is None:
            self._must_not_hide(tube.name)
            raise tube_missing(tube)
        return state

    def _must_not_hide(self, name: str) -> None:
        """NoSuchTube where a tube of that name is on its way, here or away from here."""
        for other in (arriving(name), gone(name)):
            if other in self._by_name:
                raise hidden(self._by_name[other].tube)

    def _add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> TubeState:
        self._last_no += 1
        state = TubeState(make_tube(self._last_no, name, kind, dict(given)), self._sessions.held)
        self._tubes[self._last_no] = self._by_name[name] = state
        return state

    def _wait_ms(self, states: Sequence[TubeState], now: int) -> int | None:
        moments = [self._sessions.next_moment(), *(state.next_at() for state in states)]
        waits = [max(moment - now, 0) for moment in moments if moment is not None]
        waits += [wait for state in states if (wait := state.clock_wait(now)) is not None]
        return min(waits, default=None)
