"""Slots: how many handlers may run at once, with limits by priority; a waiting handler frees its slot."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Grant = Callable[[], object]


class Slots:
    """Counts running handlers. One that waits for other tasks frees its slot, and gets one back before a new task."""

    def __init__(self, concurrency: int, limits: tuple[tuple[int, int], ...] = ()) -> None:
        # (priority from which the limit applies, how many may run), the least urgent last
        classes = [(pri, min(most, concurrency)) for pri, most in limits]
        self._classes = classes if classes and classes[0][0] == 0 else [(0, concurrency), *classes]
        self.limited = bool(limits)
        self.most = self._classes[0][1]
        self.running = 0
        self.waiting = 0
        self._lock = threading.Lock()
        #: Held while a handler ends, exceeds its time limit, frees its slot or gets it back.
        self.switch = threading.Lock()
        self._returning: deque[Grant] = deque()
        #: Called without the lock whenever a slot may have become free.
        self.on_free: list[Callable[[], None]] = []

    def acquire(self) -> bool:
        """Take a slot, if one is free and no returning handler waits for it."""
        with self._lock:
            if self.running >= self.most or self._returning:
                return False
            self.running += 1
            return True

    def release(self) -> None:
        """Free a slot: for a handler that returns from waiting, otherwise for new tasks."""
        with self._lock:
            self._free_one()
        for free in self.on_free:
            free()

    def give_up_slot(self) -> None:
        """Free the slot of a running handler that waits for other tasks."""
        with self._lock:
            self.waiting += 1
            self._free_one()
        for free in self.on_free:
            free()

    def regain_slot(self, granted: Grant) -> None:
        """Get a slot for a handler that waited: `granted` is called when it has one, possibly at once."""
        with self._lock:
            self.waiting -= 1
            if self.running >= self.most:
                self._returning.append(granted)
                return
            self.running += 1
        granted()

    @property
    def wanted(self) -> bool:
        """Whether a handler waits to get its slot back."""
        return bool(self._returning)

    def free(self) -> int:
        """The number of slots that are free for new tasks."""
        return 0 if self._returning else max(0, self.most - self.running)

    def room(self, buffered: int) -> tuple[int, int | None]:
        """How many more tasks may be taken besides `buffered` ones, and up to which priority (None: any)."""
        if self._returning:
            return 0, None
        busy = self.running + buffered
        top: int | None = None
        for pri, most in reversed(self._classes):
            if most > busy:
                return most - busy, top
            top = pri - 1
        return 0, None

    def may_start(self, pri: int) -> bool:
        """Whether a task of that priority, which already holds a slot, may start."""
        most = next(most for first, most in reversed(self._classes) if first <= pri)
        return self.running - 1 < most

    def _free_one(self) -> None:
        if self._returning:
            self._returning.popleft()()
        else:
            self.running -= 1
