"""Where blocked callers of one process wait: longest-waiting first, one woken for each new ready task.

A wake is a token when it stands for one task that this process made ready, or a hint when something may have
changed elsewhere. A waiter woken by a hint that found work hints the next, and where a second look costs nothing the
next two; a token that its waiter did not use goes to the next.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from penstock.store.forks import reset_in_child

if TYPE_CHECKING:
    from penstock.runtime.subscriber import Ears

# What is waited for, and the tube's number; of an end, also the number of the task or group.
Topic = tuple[str, int] | tuple[str, int, int]


class Waiter:
    """One blocked caller. Its place in the queue is its time of arrival, until it leaves."""

    __slots__ = ("_call", "_lock", "ears", "hinted", "max_pri", "owed", "promised", "shares", "topics", "woken")

    def __init__(self, topics: tuple[Topic, ...], max_pri: int | None) -> None:
        self.topics = topics
        self.max_pri = max_pri  # it refuses less urgent work, which another may take; None: nothing
        self.shares = False  # it sleeps without a thread, and its looks are made together with others'
        self.woken = False
        self.hinted = False
        self.owed = False  # something came while it was awake: it looks again
        self.promised = False  # and that look is a token's
        self.ears: Ears | None = None  # how it can hear of changes elsewhere while it sleeps
        self._call: Callable[[], bool] | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, seconds: float | None) -> bool:
        """Block until woken (True) or the time is over."""
        return self.rest(seconds) if self.ears is None else self.ears.sleep(self, seconds)

    def rest(self, seconds: float | None) -> bool:
        """The same, deaf."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def call_when_woken(self, call: Callable[[], bool] | None) -> bool:
        """Sleep without a thread: call this at the next wake-up. True when that has been already; None ends it.

        The call must be short and must not enter the room; it says whether the sleeper is still there.
        """
        self.shares = True
        if call is not None and self.ears is not None:
            self.ears.others_listen()
        return self.on_wake(call)

    def on_wake(self, call: Callable[[], bool] | None) -> bool:
        """Have this called at the next wake-up, as above, by one that sleeps in its own way."""
        self._call = call  # before the look at the lock, else a wake-up in between would be lost
        if call is None or not self._lock.acquire(blocking=False):
            return False
        self._call = None
        return True

    def wake(self) -> bool:
        """End this sleep or the next one; False when the sleeper is gone. Only the room calls it, under its lock."""
        call, self._call = self._call, None
        if call is not None:
            return call()
        if self._lock.locked():
            self._lock.release()
        return True


class Room:
    """The waiters of one store in this process, whichever of its brokers they came through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[Topic, dict[Waiter, None]] = {}
        reset_in_child(self)

    def enter(self, topics: tuple[Topic, ...], max_pri: int | None = None) -> Waiter:
        """Queue up."""
        waiter = Waiter(topics, max_pri)
        with self._lock:
            for topic in topics:
                self._waiters.setdefault(topic, {})[waiter] = None
        return waiter

    def again(self, waiter: Waiter) -> None:
        """It was woken and found nothing: it waits on, at its old place. What it may have refused is another's."""
        with self._lock:
            if waiter.woken and waiter.max_pri is not None:
                for topic in waiter.topics:
                    self._wake(topic, 1, hint=False, beyond=waiter.max_pri)
            waiter.woken = waiter.hinted = waiter.owed
            waiter.owed = waiter.promised = False
            if waiter.woken:
                waiter.wake()

    def leave(self, waiter: Waiter, got: Topic | None) -> None:
        """It goes: with what it waited for, or without; what it leaves unused is the next one's."""
        with self._lock:
            self._remove(waiter)
            used = got is not None and len(waiter.topics) == 1 and not (waiter.hinted or waiter.owed)
            if waiter.woken and not used:
                # Doubling: of a thousand tasks put elsewhere, ten rounds of looks take all, and not a thousand.
                spread = 2 if got is not None and waiter.shares else 0
                for topic in waiter.topics:
                    self._wake(topic, spread or 1, hint=True, past_awake=bool(spread))

    def wake(self, topic: Topic, count: int = 1, *, hint: bool = False) -> None:
        """Wake the longest-waiting ones."""
        if topic in self._waiters:  # unlocked look: a waiter tries once more after it has entered
            with self._lock:
                self._wake(topic, count, hint=hint)

    def wake_all(self) -> None:
        """Hint the first waiter of every topic."""
        with self._lock:
            for topic in list(self._waiters):
                self._wake(topic, 1, hint=True)

    def rouse(self, waiters: list[Waiter]) -> None:
        """Wake these, because they must not wait any longer."""
        with self._lock:
            for waiter in waiters:
                if not waiter.woken:
                    waiter.woken = True
                    waiter.wake()
                else:
                    waiter.owed = True  # it looks already, perhaps too early

    def __len__(self) -> int:
        return len(self._waiters)

    def __bool__(self) -> bool:
        return True

    def is_alone(self, waiter: Waiter) -> bool:
        """Whether nobody else waits for anything."""
        with self._lock:
            waiting = [self._waiters.get(topic, {}) for topic in waiter.topics]
            return len(self._waiters) == len(waiting) and all(len(some) == 1 for some in waiting)

    def has(self, topic: Topic) -> bool:
        """Whether anyone waits for it."""
        return topic in self._waiters

    def after_fork(self) -> None:
        """The parent's waiters are no threads of the child."""
        self._lock = threading.Lock()
        self._waiters = {}

    def _remove(self, waiter: Waiter) -> None:
        for topic in waiter.topics:
            waiting = self._waiters.get(topic)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._waiters[topic]

    def _wake(
        self, topic: Topic, count: int, *, hint: bool, past_awake: bool = False, beyond: int | None = None
    ) -> None:
        waiting: Collection[Waiter] = self._waiters.get(topic, {})
        if beyond is not None:  # only who takes more than that, else two who refuse would wake each other for ever
            waiting = [waiter for waiter in waiting if waiter.max_pri is None or waiter.max_pri > beyond]
        gone = []
        for waiter in waiting:
            if count <= 0:
                break
            if not waiter.woken:
                if waiter.wake():
                    waiter.woken, waiter.hinted = True, hint
                    count -= 1
                else:
                    gone.append(waiter)
            elif hint:
                if not past_awake:
                    waiter.owed = True  # its look may have been too early; with work it passes the hint on
                    break
            elif waiter.hinted and not waiter.promised:
                waiter.owed = waiter.promised = True  # its look may have been too early for this one
                count -= 1
        # All are awake, and the look of each may have been too early.
        for waiter in waiting if count > 0 and not hint else ():
            waiter.owed = True
        for waiter in gone:
            self._remove(waiter)


def pauses() -> Iterator[float]:
    """Seconds between the attempts of a call that outlasts its server: ever longer, up to one."""
    pause = 0.05
    while True:
        yield pause
        pause = min(pause * 2, 1.0)


_rooms: weakref.WeakValueDictionary[str, Room] = weakref.WeakValueDictionary()
_rooms_lock = threading.Lock()


def room_of(identity: str) -> Room:
    """The room of a store in this process."""
    with _rooms_lock:
        room = _rooms.get(identity)
        if room is None:
            room = _rooms[identity] = Room()
        return room
