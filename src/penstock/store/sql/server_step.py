"""What the stores on SQL servers share: the server's clock, transactions of several round trips, and takes, which are
undone where their answers were lost.

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
from typing import Any, NamedTuple, Protocol, Self, cast

from penstock.core.lifecycle import round_wait_ms
from penstock.core.options import Tube
from penstock.core.results import Effects
from penstock.core.task import Entry, Record
from penstock.engine import port
from penstock.engine.port import Conflict, Delta, Handed, Request
from penstock.engine.sessions import LostTake, give_back
from penstock.engine.store import Store
from penstock.engine.work import must_hold
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.store.sql.server import Server
from penstock.store.sql.sql_step import Row, SqlStep

# The server's clock is estimated from its last answer; after this time it is asked again.
CLOCK_SECONDS = 10.0
# The next try after other takers had locked what this one looked for.
BUSY_MS = 20


class Watcher(Protocol):
    """Notices changes by other processes."""

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """As `Store.wait`."""

    def close(self) -> None:
        """End its thread, if it has one."""


class ServerStore(Store):
    """A store on a SQL server."""

    shared = True
    remote = True
    #: How likely a change adds up the counters, which are kept as differences.
    fold_chance: float

    def __init__(
        self, server: Server[Any], identity: str, clock: Callable[[], int] | None, watcher: Watcher | None
    ) -> None:
        super().__init__(identity)
        self.server = server
        self.clock = clock
        self.watcher = watcher
        self.waiting = set[int]()  # the numbers of blocked takes that are registered
        self._clock_answer: tuple[int, float] | None = None  # the server's clock, and when it was read

    def now(self) -> int:
        if self.clock is not None:
            return self.clock()
        with self.step(write=False) as step:
            return step.now

    def note_clock(self, now: int) -> None:
        """Remember the server's clock, which an answer contained."""
        self._clock_answer = now, time.monotonic()

    def estimated_now(self) -> int | None:
        """The server's clock, estimated from its last answer, never ahead of it; None if that is too old."""
        if self._clock_answer is None:
            return None
        now, read = self._clock_answer
        passed = time.monotonic() - read
        return now + int(passed * 1000) if passed < CLOCK_SECONDS else None

    def fold_sometimes(self, tube: Tube) -> None:
        """Now and then, add up the counters. If that fails, another call does it."""
        if random() < self.fold_chance and not self.server.bound:
            with suppress(PenstockError, Conflict):
                self.fold(tube)

    @abstractmethod
    def fold(self, tube: Tube) -> None:
        """Add up the differences of a tube's counters. Skips what other transactions have locked."""

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self.watcher is None:
            return super().wait(wake, seconds, watch=watch)
        return self.watcher.wait(wake, seconds, watch=watch)

    def close(self) -> None:
        if self.watcher is not None:
            self.watcher.close()
        self.server.close()


class Looked(NamedTuple):
    """What a take found in one tube: `no` is None if the tube is gone, `session` if the handle is. `next_at`: the next
    deadline, 0 while tasks must follow a group. `rank`: that of the first element of a round tube."""

    no: int | None
    session: int | None
    clock: int
    next_at: int | None
    records: list[Record]
    rank: float | None = None


class Lost(LostTake, kw_only=True):
    """A take whose answer did not come, and the number of the caller that it may have registered."""

    waiter: int | None


class ServerStep(SqlStep):
    """A step on a server. With `held`, all of it is one transaction, and one snapshot if it only reads."""

    optimistic = True
    #: A put in flight when a taker registers may notify nobody: the taker looks again after this time.
    settling_ms: int | None = None

    def __init__(self, database: ServerStore, *, write: bool, held: bool, now: int | None) -> None:
        self.given = database.clock() if now is None and database.clock is not None else now
        self.write = write
        self.link: Any = None  # the connection of a transaction of several round trips
        self._database = database
        self._now = self.given
        self._held = held
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._held:
            self._stack.enter_context(self.together())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make everything within one transaction. It holds locks between round trips, so it is for rare calls only."""
        if self.link is not None:
            yield
            return
        with self._database.server.transaction(snapshot=not self.write) as self.link:
            try:
                yield
            finally:
                self.link = None

    @property
    def now(self) -> int:
        """The clock of the last answer, or an estimate if there was none yet.

        The server's own clock tests in the flush whether a decision still holds.
        """
        if self._now is None:
            self._now = self._database.estimated_now()
        if self._now is None:
            self.note_clock(int(self.rows(self.Q.clock)[0][0]))
        assert self._now is not None
        return self._now

    @now.setter
    def now(self, moment: int) -> None:
        self.note_clock(moment)

    def note_clock(self, moment: int) -> None:
        """Remember the server's clock, which an answer contained."""
        if self.given is None:
            self._now = moment
            self._database.note_clock(moment)

    @property
    def soon(self) -> int:
        """When to retry deadlines that passed and were not applied."""
        return self.now

    def count_changes(self, tube: Tube) -> None:
        """A call left differences of the counters: now and then, add them up."""
        if self.link is None:
            self._database.fold_sometimes(tube)

    def look(self, tube: Tube, asked: Sequence[tuple[str, dict[str, Any]]], *, hidden: bool) -> list[list[Row]]:
        ((clock, lives),), *results = self.several([(self.Q.look_at_tube, {"tube": tube.no}), *asked])
        self.note_clock(int(clock))
        if not (lives or hidden):
            raise self.no_such_tube(tube)
        return results

    # puts and takes

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        if not entries:
            return []
        step = cast(port.Step, self)
        try:
            records = step.flush(Delta(tube, fresh=list(entries))).fresh
        except Conflict:
            self.must_live(tube)
            must_hold(step, tube, len(entries))
            raise
        self.note_clock(records[0].created)
        return records

    def take(self, request: Request) -> Handed:
        """Lease or hand out tasks of the first tube that has any.

        When the connection breaks, what the take may have done is undone, and it is made again.
        """
        before, blocked, waiter, handed = Effects(), request.blocked, request.waiter, None
        while handed is None:
            self.undo_lost(before)
            call = port.new_call()
            try:
                handed = self.take_once(request, call)
            except OutcomeUnknown:
                lost = Lost(request.tubes, request.handle, call, waiter=None if blocked is None else waiter)
                self._database.lost.add(lost)
        handed.before = before
        if handed.records:
            self.count_changes(request.tubes[0])
        if handed.due is None and blocked is not None:
            self._database.waiting.discard(waiter)
            if handed.alive and not handed.records and blocked != "unregister":
                self._database.waiting.add(waiter)
                if blocked == "register" and self.settling_ms is not None:
                    settled = self.now + self.settling_ms
                    handed.next_at = settled if handed.next_at is None else min(settled, handed.next_at)
        return handed

    def take_once(self, request: Request, call: int) -> Handed:
        """One try of a take, whose leases get the number of the call. If nothing came, it registers a caller that is
        not to be unregistered, also again."""
        raise NotImplementedError

    def handed(self, request: Request, looks: Sequence[Looked]) -> Handed:
        """What a take got, by what it saw of its tubes, in order."""
        nexts: list[int] = []
        handed = Handed()
        for place, (tube, look) in enumerate(zip(request.tubes, looks, strict=True)):
            if look.no is None:
                raise self.no_such_tube(tube)
            self.note_clock(look.clock)
            if look.next_at is not None and look.next_at <= look.clock:
                if place >= request.forced:
                    return Handed(due=tube)
                nexts.append(self.soon)
            elif look.next_at is not None:
                nexts.append(look.next_at)
            if look.session is None:
                handed.alive = False
                break
            handed.records = look.records
            if handed.records:
                handed.tube = tube
                break
            if look.rank is not None:
                wait = round_wait_ms(tube, look.rank, self.now)
                nexts.append(self.now + (BUSY_MS if wait is None else wait))
        handed.next_at = min(nexts, default=None)
        return handed

    def undo_lost(self, effects: Effects, *, again: bool = False) -> None:
        """Undo takes whose answers were lost: release what they leased, and unregister their callers."""
        for lost in self._database.lost.left(again=again):
            assert isinstance(lost, Lost)
            unregister = lost.waiter is not None and lost.waiter not in self._database.waiting
            for tube, records in zip(lost.tubes, self.leased_by(lost, unregister=unregister), strict=True):
                give_back(cast(port.Step, self), tube, records, effects)
            self._database.lost.looked(lost)

    def leased_by(self, lost: Lost, *, unregister: bool) -> list[list[Record]]:
        """What such a take leased in each of its tubes, once it is not under way any more."""
        raise NotImplementedError
