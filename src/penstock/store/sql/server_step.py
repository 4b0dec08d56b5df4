"""What the stores on SQL servers share: the server's clock, transactions of several round trips, and takes, which are
undone if their answers are lost.

Each load, each flush and each hot statement is one round trip and one transaction.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from random import random
from types import TracebackType
from typing import Any, Self

from penstock.core.options import Tube
from penstock.engine import port
from penstock.engine.port import Conflict, LostTake, TakeAnswer, TakeRequest
from penstock.engine.store import Store
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.store.sql.server import Server
from penstock.store.sql.sql_step import Row, SqlStep

# The server's clock is estimated from its last answer, and read again once that answer is older than this.
CLOCK_SECONDS = 10.0
# A transaction that is open longer keeps enough removed rows to slow down takes.
_LONG_SECONDS = 300


class ServerStore(Store):
    """A store on a SQL server."""

    shared = True
    remote = True
    #: The class of its steps.
    step_type: type[ServerStep]
    #: The probability that a change folds the counters, which are stored as differences.
    fold_chance: float

    def __init__(self, server: Server[Any], identity: str, clock: Callable[[], int] | None, watcher: Any) -> None:
        super().__init__(identity)
        self.server = server
        self.queries = server.queries
        self.clock = clock
        self.watcher = watcher  # detects changes by other processes (`wait`, `close`); a bound store has none
        self.waiting = set[int]()  # the numbers of blocked takes that are registered
        self._clock_answer: tuple[int, float] | None = None  # the server's clock, and when it was read

    def step(self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1) -> Any:
        # A check of the whole store, or its repair, is one transaction.
        return self.step_type(self, write=write, held=not tubes and size > 1)

    def now(self) -> int:
        if self.clock is not None:
            return self.clock()
        with self.step(write=False) as step:
            return int(step.now)

    def note_clock(self, now: int) -> None:
        """Remember the server's clock from an answer."""
        self._clock_answer = now, time.monotonic()

    def estimated_now(self) -> int | None:
        """Estimate the server's clock from its last answer, never ahead of it. None if the answer is too old."""
        if self._clock_answer is None:
            return None
        now, read = self._clock_answer
        passed = time.monotonic() - read
        return now + int(passed * 1000) if passed < CLOCK_SECONDS else None

    def fold_sometimes(self, tube: Tube) -> None:
        """Fold the counters with the probability `fold_chance`. Ignores failures: a later call folds them."""
        if random() < self.fold_chance and not self.server.bound:
            with suppress(PenstockError, Conflict):
                self.fold(tube)

    @abstractmethod
    def fold(self, tube: Tube) -> None:
        """Add up the stored differences of a tube's counters. Skips rows that other transactions have locked."""

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self.watcher is None:
            return super().wait(wake, seconds, watch=watch)
        return bool(self.watcher.wait(wake, seconds, watch=watch))

    def close(self) -> None:
        if self.watcher is not None:
            self.watcher.close()
        if not self.server.bound:  # a bound connection belongs to the caller
            self.server.close()


def advice_on(pool_size: int, connections: int, open_seconds: int | None) -> list[str]:
    """Return advice on the limit of connections, and on the transaction that has been open for longest."""
    advice = []
    if pool_size >= connections:
        advice.append(f"pool_size is {pool_size}, max_connections {connections}: lower one or raise the other")
    if open_seconds is not None and open_seconds > _LONG_SECONDS:
        advice.append(f"a transaction has been open for {open_seconds} s and keeps removed rows on disk: end it")
    return advice


class ServerStep(SqlStep):
    """A step on a server. With `held`, the whole step is one transaction, on one snapshot if it is read-only."""

    #: A put in flight while a taker registers may not notify it, so the taker retries after this time.
    settling_ms: int | None = None

    def __init__(self, database: ServerStore, *, write: bool, held: bool) -> None:
        self.db, self.Q = database, database.queries
        self.given = None if database.clock is None else database.clock()
        self.write = write
        self.link: Any = None  # the connection of a transaction of several round trips
        self._now = self.given
        self._held = held
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._held:
            self._stack.enter_context(self.transaction())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction. It holds locks between round trips, so use it only for rare calls."""
        if self.link is not None:
            yield
            return
        with self.db.server.transaction(snapshot=not self.write) as self.link:
            try:
                yield
            finally:
                self.link = None

    def rows(self, query: str, **values: object) -> list[Row]:
        return self.several([(query, values)])[0]

    @property
    def now(self) -> int:
        """The server's clock from the last answer, or an estimate before the first answer.

        The flush checks with the server's own clock whether a decision is still valid.
        """
        if self._now is None:
            self._now = self.db.estimated_now()
        if self._now is None:
            self.note_clock(int(self.rows(self.Q.clock)[0][0]))
        assert self._now is not None
        return self._now

    @now.setter
    def now(self, moment: int) -> None:
        self.note_clock(moment)

    def note_clock(self, moment: int) -> None:
        """Remember the server's clock from an answer."""
        if self.given is None:
            self._now = moment
            self.db.note_clock(moment)

    def count_changes(self, tube: Tube) -> None:
        """Sometimes fold the counters, after a call that added differences."""
        if self.link is None:
            self.db.fold_sometimes(tube)

    def look(self, tube: Tube, asked: Sequence[tuple[str, dict[str, Any]]], *, hidden: bool) -> list[list[Row]]:
        ((clock, lives),), *results = self.several([(self.Q.look_at_tube, {"tube": tube.no}), *asked])
        self.note_clock(int(clock))
        if not (lives or hidden):
            raise self.no_such_tube(tube)
        return results

    # takes

    def take(self, request: TakeRequest) -> TakeAnswer:
        """Lease or hand out tasks of the first tube that has any.

        Raises Conflict if the connection breaks: the engine undoes what the take may have done, and retries it.
        """
        blocked, waiter, call = request.blocked, request.waiter, port.new_call()
        try:
            handed = self.take_once(request, call)
        except OutcomeUnknown as error:
            unsure = None if blocked is None else waiter
            self.db.lost[call] = LostTake(request.tubes, request.handle, call, unsure)
            raise Conflict from error
        if handed.records:
            self.count_changes(request.tubes[0])
        if handed.due is None and blocked is not None:
            self.db.waiting.discard(waiter)
            if handed.alive and not handed.records and blocked != "unregister":
                self.db.waiting.add(waiter)
                if blocked == "register" and self.settling_ms is not None:
                    settled = self.now + self.settling_ms
                    handed.next_at = settled if handed.next_at is None else min(settled, handed.next_at)
        return handed

    def take_once(self, request: TakeRequest, call: int) -> TakeAnswer:
        """Try a take once. Its leases get the number `call`. If it finds nothing, it registers a blocked caller,
        again for "unregister_if_found"."""
        raise NotImplementedError

    def is_registered(self, waiter: int | None) -> bool:
        """Whether this blocked caller is registered by another take than the one whose answer was lost."""
        return waiter is None or waiter in self.db.waiting
