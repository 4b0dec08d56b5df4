"""The queue of blocked callers in one process: longest-waiting first, one woken for each new ready task.

A wake-up is a token if it is for one task that this process made ready, or a hint if something may have changed
elsewhere. A waiter woken by a hint that found work hints the next one, or the next two where a second attempt costs
nothing; a token that its waiter did not use goes to the next one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator

from penstock.system.forks import reset_in_child

# What is waited for, and the tube's number; for the end of a task or group, also its number.
Topic = tuple[str, int] | tuple[str, int, int]


class Waiter:
    """One blocked caller. It keeps its place in the queue until it is removed."""

    __slots__ = ("_call", "_lock", "hinted", "max_pri", "retry", "retry_for_token", "shares", "topics", "woken")

    def __init__(self, topics: tuple[Topic, ...], max_pri: int | None) -> None:
        self.topics = topics
        self.max_pri = max_pri  # it takes no less urgent work, which another waiter may take; None: any
        self.shares = False  # it sleeps without a thread, and its attempts share store calls
        self.woken = False
        self.hinted = False
        self.retry = False  # a wake-up came while it was awake: it tries again before it sleeps
        self.retry_for_token = False  # that wake-up was a token
        self._call: Callable[[], bool] | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, seconds: float | None) -> bool:
        """Block until woken or until the time is over. Returns whether it was woken."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def call_when_woken(self, call: Callable[[], bool] | None) -> bool:
        """Sleep without a thread: make this call at the next wake-up. Returns True if that has already come.

        The call must be short and must not use the queue; it returns whether the sleeper is still there. None ends the
        sleep.
        """
        self.shares = True
        self._call = call  # before the lock is tried, otherwise a wake-up in between would be lost
        if call is None or not self._lock.acquire(blocking=False):
            return False
        self._call = None
        return True

    def wake(self) -> bool:
        """End this sleep or the next one. Returns False if the sleeper is gone. The queue calls this under its lock."""
        call, self._call = self._call, None
        if call is not None:
            return call()
        if self._lock.locked():
            self._lock.release()
        return True


class WaitQueue:
    """The waiters of one store in this process, of all its brokers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: What is waited for, and by whom. May be read without the lock: a waiter tries once more after it was added.
        self.topics: dict[Topic, dict[Waiter, None]] = {}
        reset_in_child(self)

    def add(self, topics: tuple[Topic, ...], max_pri: int | None = None) -> Waiter:
        """Add a waiter at the end of the queue of each topic."""
        waiter = Waiter(topics, max_pri)
        with self._lock:
            for topic in topics:
                self.topics.setdefault(topic, {})[waiter] = None
        return waiter

    def requeue(self, waiter: Waiter) -> None:
        """Keep a woken waiter that found nothing at its place; wake another one for tasks that it may have refused."""
        with self._lock:
            if waiter.woken and waiter.max_pri is not None:
                for topic in waiter.topics:
                    self._wake(topic, 1, hint=False, beyond=waiter.max_pri)
            waiter.woken = waiter.hinted = waiter.retry
            waiter.retry = waiter.retry_for_token = False
            if waiter.woken:
                waiter.wake()

    def remove(self, waiter: Waiter, got: Topic | None) -> None:
        """Remove a waiter. `got`: the topic that served it, or None. An unused wake-up goes to the next waiter."""
        with self._lock:
            self._discard(waiter)
            used = got is not None and len(waiter.topics) == 1 and not (waiter.hinted or waiter.retry)
            if waiter.woken and not used:
                # Doubling: a thousand tasks put elsewhere are taken in ten rounds, not a thousand.
                spread = 2 if got is not None and waiter.shares else 0
                for topic in waiter.topics:
                    self._wake(topic, spread or 1, hint=True, past_awake=bool(spread))

    def wake(self, topic: Topic, count: int = 1, *, hint: bool = False) -> None:
        """Wake the longest-waiting callers of a topic."""
        if topic in self.topics:
            with self._lock:
                self._wake(topic, count, hint=hint)

    def wake_all(self) -> None:
        """Hint the first waiter of every topic."""
        with self._lock:
            for topic in list(self.topics):
                self._wake(topic, 1, hint=True)

    def wake_waiters(self, waiters: list[Waiter]) -> None:
        """Wake these waiters, because their calls must end."""
        with self._lock:
            for waiter in waiters:
                if not waiter.woken:
                    waiter.woken = True
                    waiter.wake()
                else:
                    waiter.retry = True  # it is trying already, perhaps too early

    def after_fork(self) -> None:
        """Forget the parent's waiters, which do not exist in a forked child."""
        self._lock = threading.Lock()
        self.topics = {}

    def _discard(self, waiter: Waiter) -> None:
        for topic in waiter.topics:
            waiting = self.topics.get(topic)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self.topics[topic]

    def _wake(
        self, topic: Topic, count: int, *, hint: bool, past_awake: bool = False, beyond: int | None = None
    ) -> None:
        waiting: Collection[Waiter] = self.topics.get(topic, {})
        if beyond is not None:  # only those that take more, otherwise two that refuse would wake each other forever
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
                    waiter.retry = True  # its attempt may have been too early; if it finds work, it passes the hint on
                    break
            elif waiter.hinted and not waiter.retry_for_token:
                waiter.retry = waiter.retry_for_token = True  # its attempt may have been too early for this one
                count -= 1
        # All are awake, and the attempt of each may have been too early.
        for waiter in waiting if count > 0 and not hint else ():
            waiter.retry = True
        for waiter in gone:
            self._discard(waiter)


def pauses() -> Iterator[float]:
    """Growing pauses, in seconds up to one, between the retries of a call whose server is unavailable."""
    pause = 0.05
    while True:
        yield pause
        pause = min(pause * 2, 1.0)


_queues: weakref.WeakValueDictionary[str, WaitQueue] = weakref.WeakValueDictionary()
_queues_lock = threading.Lock()


def wait_queue_of(identity: str) -> WaitQueue:
    """The wait queue of a store in this process."""
    with _queues_lock:
        queue = _queues.get(identity)
        if queue is None:
            queue = _queues[identity] = WaitQueue()
        return queue
