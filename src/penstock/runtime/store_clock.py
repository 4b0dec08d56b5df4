"""Drives the clock of a store: once a second, applies everything that is due in any of its tubes.

The brokers of a process share one clock: the first of their background threads to wake after each second does the work
for all. A broker without a background thread drives nothing.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.core.options import Tube
from penstock.core.results import Effects, Event, Overdue
from penstock.engine.store import Store
from penstock.errors import NoSuchTube, OutcomeUnknown, StoreUnavailable
from penstock.system.forks import reset_in_child

log = logging.getLogger("penstock")

#: Seconds between two checks by a background thread.
CLOCK_SECONDS = 0.9
#: Tube options older than this may have been altered since.
FRESH_SECONDS = 1.0
# A backlog is applied in slices of this length, so that the thread sends its heartbeats in between.
_BUSY_SECONDS = 0.5


Watch = Callable[[Overdue], object]


class ClockRuntime(Protocol):
    """What the clock needs of a broker's runtime."""

    closed: bool

    @property
    def store(self) -> Store: ...
    def wake_callers(self, effects: Effects) -> None: ...
    def call_listeners(self, events: list[Event]) -> None: ...
    def use_tubes(self, tubes: Mapping[int, Tube]) -> None: ...


class StoreClock:
    """The clock of one store in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = time.monotonic() + CLOCK_SECONDS
        self._altered: str | None = None
        self._watchers: list[Watch] = []
        #: Until then, by the monotonic clock, the options of tubes are known.
        self.fresh_until = time.monotonic() + FRESH_SECONDS
        self._runtimes: weakref.WeakSet[ClockRuntime] = weakref.WeakSet()
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child, forget that a thread of the parent drives the clock."""
        self._lock = threading.Lock()

    def join(self, runtime: ClockRuntime) -> None:
        """Register a broker on this store: its listeners are called for what the clock changes."""
        self._runtimes.add(runtime)

    def drive(self, runtime: ClockRuntime) -> float:
        """Apply everything due, unless that was just done. Returns when to call again, by the monotonic clock."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return self._next
            self._next = now + CLOCK_SECONDS
        if self._apply(runtime, now + _BUSY_SECONDS):
            self._next = time.monotonic()
        return self._next

    def apply_due(self, runtime: ClockRuntime) -> None:
        """Apply everything that is due, now."""
        self._next = time.monotonic() + CLOCK_SECONDS
        self._apply(runtime, None)

    def _apply(self, runtime: ClockRuntime, until: float | None) -> bool:
        """Apply everything due in all tubes until a time. Returns whether something is left."""
        tubes = self._find_overdue(runtime).tubes
        while tubes:
            tubes = [tube for tube in tubes if self._advance(runtime, tube)]
            if tubes and until is not None and time.monotonic() >= until:
                return True
        return False

    def refresh(self, runtime: ClockRuntime) -> None:
        """Reload altered options, in a process without a thread that drives the clock."""
        with self._lock:
            if time.monotonic() < self.fresh_until:
                return
            self.fresh_until = time.monotonic() + FRESH_SECONDS
        self._find_overdue(runtime)

    def _find_overdue(self, runtime: ClockRuntime) -> Overdue:
        began = time.monotonic()
        found = runtime.store.overdue()
        if found.altered != self._altered:
            self.share({tube.no: tube for tube in runtime.store.load_tubes()})
            self._altered = found.altered
        self.fresh_until = max(self.fresh_until, began + FRESH_SECONDS)
        for watch in list(self._watchers):
            watch(found)
        return found

    def watch(self, watcher: Watch) -> Callable[[], None]:
        """Call the watcher at every check. Returns a function that removes it. The watcher must be quick."""
        self._watchers = [*self._watchers, watcher]

        def end() -> None:
            self._watchers = [each for each in self._watchers if each is not watcher]

        return end

    def share(self, tubes: Mapping[int, Tube]) -> None:
        """Pass these options to the handles of every broker."""
        for each in list(self._runtimes):
            each.use_tubes(tubes)

    def _advance(self, runtime: ClockRuntime, tube: Tube) -> bool:
        """Advance one tube by one step. Returns whether more is due there."""
        try:
            advanced = runtime.store.advance(tube)
        except NoSuchTube:
            return False
        except (StoreUnavailable, OutcomeUnknown):
            raise
        except Exception:  # an error in one tube must neither end the thread nor stop the clock of other tubes
            log.exception("could not apply deadlines in tube %s; retrying", tube.name)
            return False
        runtime.wake_callers(advanced.effects)
        if advanced.effects.events:
            for each in list(self._runtimes):
                if not each.closed:
                    each.call_listeners(advanced.effects.events)
        return advanced.more


_clocks: weakref.WeakValueDictionary[str, StoreClock] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def clock_of(identity: str) -> StoreClock:
    """The clock that all brokers of this process on one store share."""
    with _opening:
        return _clocks.setdefault(identity, StoreClock())
