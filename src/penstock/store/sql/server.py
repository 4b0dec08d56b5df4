"""Transactions on a SQL server: a small pool of connections, and calls that are retried where that is safe."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from penstock.engine.port import Conflict
from penstock.errors import (
    OutcomeUnknown,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from penstock.store.forks import reset_in_child
from penstock.store.sql.migrations import ANOTHER_SCHEMA

# How long a call waits for a connection: a server that restarts is back by then.
WAIT_SECONDS = 5.0
# How long a call that met a deadlock or a broken connection is retried: a deadlock costs little, and one of the two
# always wins; a wait for a lock has already cost two seconds.
RETRY_SECONDS = 5.0
# An idle connection is closed after this time.
IDLE_SECONDS = 600.0

# What an error of a server means: the error to raise, and what it says after the server's name.
Meaning = tuple[type[StoreError], str]
AWAY: Meaning = StoreUnavailable, "cannot be reached ({text}): check that it runs and accepts this user"
BUSY: Meaning = StoreBusy, "has rows that others kept locking ({text}): try again"
DENIED: Meaning = StoreUnavailable, "refused this user ({text}): check the URL and the user's rights"
USED_UP: Meaning = StoreFull, "has used up the ids of a tube ({text}): use another tube"
FULL: Meaning = StoreFull, "has no space left ({text}): free some; deletes and acks may still work"
DAMAGED: Meaning = StoreCorrupt, "is damaged ({text}): it was left as it is; restore a backup"
FOREIGN: Meaning = SchemaMismatch, f"has another schema than this penstock ({{text}}): {ANOTHER_SCHEMA}"

T = TypeVar("T")


class Connection(Protocol):
    """A connection that only one thread uses at a time."""

    returned: float  # when it became idle

    def hung_up(self) -> bool:
        """Whether the server has ended the idle connection. No round trip."""

    def begin(self, *, snapshot: bool) -> None:
        """Begin a transaction of several round trips. `snapshot`: it only reads, from one snapshot."""

    def finish(self) -> None:
        """Commit that transaction."""

    def undone(self) -> bool:
        """Undo what is open after an error. Returns False if the connection broke."""

    def close(self) -> None:
        """Close it, whether or not the server is there."""


C = TypeVar("C", bound=Connection)


class Pool(Generic[C]):
    """Up to `size` connections, opened when they are needed, the last used one first. `place` names the server."""

    def __init__(self, connect: Callable[[float], C], size: int, place: str) -> None:
        self._connect = connect  # gets the number of seconds that it has
        self._size = size
        self._place = place
        self._closed = False
        self.reset()

    def reset(self) -> None:
        """Forget all connections, as a forked child must."""
        self.idle: list[C] = []
        # A permit for each connection that may be in use. Not a Semaphore, which is made of Python: 4 µs of a put.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._size):
            self._permits.put(None)

    def borrow(self, seconds: float) -> C:
        """A live connection; StoreBusy when all are in use for too long, and what `connect` raises."""
        if self._closed:
            raise StoreUnavailable(f"this broker on {self._place} is closed: connect again")
        try:
            self._permits.get(timeout=seconds)
        except Empty:
            raise StoreBusy(
                f"all {self._size} connections to {self._place} were busy for {seconds} s: "
                "use fewer threads, or give the URL a larger pool_size"
            ) from None
        try:
            while (link := self._pop()) is not None:
                if not link.hung_up():
                    return link
                link.close()
            return self._connect(seconds)
        except BaseException:
            self._permits.put(None)
            raise

    def _pop(self, place: int = -1) -> C | None:
        try:
            return self.idle.pop(place)
        except IndexError:  # another thread has it
            return None

    def give_back(self, link: C, *, usable: bool) -> None:
        """The caller is done with it; `usable`: outside of any transaction."""
        link.returned = time.monotonic()
        if usable:
            self.idle.append(link)
        else:
            link.close()
        self._permits.put(None)
        if self._closed:
            self.close()
        elif len(self.idle) > 1 and link.returned - self.idle[0].returned > IDLE_SECONDS:
            oldest = self._pop(0)
            if oldest is not None:
                oldest.close()

    def close(self) -> None:
        """No more connections; those in use are closed when they come back."""
        self._closed = True
        while (link := self._pop()) is not None:
            link.close()


class Server(ABC, Generic[C]):
    """Runs transactions on the connections of a pool. A store adds how it connects, what errors of its driver mean, and
    how its schema is kept. `place` names the server in messages.
    """

    #: Whether calls are part of the caller's own transaction.
    bound = False
    #: What the driver raises.
    errors: tuple[type[Exception], ...]

    def __init__(self, size: int, place: str) -> None:
        self.place = place
        self.pool = Pool(self.connect, size, place)
        reset_in_child(self)

    @abstractmethod
    def open(self, seconds: float = 0) -> C:
        """Open a connection. A server that is away is retried for that many seconds, if its store does so."""

    def connect(self, seconds: float = 0) -> C:
        """Open a connection for the pool."""
        return self.open(seconds)

    # the schema (see `migrations`)

    @abstractmethod
    def must_suit(self, link: C) -> None:
        """StoreUnavailable if the server is too old, or cannot be written."""

    @abstractmethod
    def meta(self, link: C) -> dict[str, str]:
        """What is known of the store; nothing of a new one."""

    @abstractmethod
    def set_meta(self, link: C, meta: dict[str, str]) -> None:
        """Write what is known of the store."""

    @abstractmethod
    def alone(self, link: C) -> AbstractContextManager[None]:
        """Keep other processes from migrating meanwhile."""

    @abstractmethod
    def apply(self, link: C, sql: str) -> None:
        """Run a migration."""

    # errors

    @abstractmethod
    def conflict(self, error: Exception) -> Conflict | None:
        """The Conflict to raise if another transaction was in the way or a guard failed; all is undone then."""

    @abstractmethod
    def is_lost(self, connection: C, error: Exception) -> bool:
        """Whether the connection broke, so that the outcome of the call is unknown."""

    @abstractmethod
    def meaning(self, error: Exception) -> Meaning:
        """What an error means if the connection lives or was never made."""

    def said(self, error: Exception) -> str:
        """What an error says, without details of the statement."""
        return str(error).strip().partition("\n")[0]

    def translated(self, error: Exception) -> StoreError:
        """The error to raise instead, saying what to do next."""
        kind, message = self.meaning(error)
        return kind(f"{self.place} {message.format(text=self.said(error))}")

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Raise what the driver raises as ours."""
        try:
            yield
        except self.errors as error:
            raise self.translated(error) from error

    # calls

    def may_retry(self, connection: C, error: Exception, *, safe: bool, restart: bool) -> bool:
        """Whether to make a call again that failed."""
        return (restart and self.conflict(error) is not None) or (safe and self.is_lost(connection, error))

    def attempt(self, work: Callable[[C], T], *, safe: bool, restart: bool = False) -> T:
        """The result of some work, which is one transaction and commits by itself.

        `safe`: doing it twice is as good as once, so that it is retried after its connection broke; otherwise that is
        OutcomeUnknown. `restart`: retry it after a conflict; otherwise that is for the caller.
        """
        if self.bound:  # what is retried is for the owner of the transaction to decide
            with self.transaction(snapshot=False) as connection:
                return work(connection)
        failures, ends = 0, 0.0
        while True:
            connection = self.pool.borrow(WAIT_SECONDS)
            usable = False
            try:
                result = work(connection)
                usable = True
                return result
            except Exception as error:
                usable = connection.undone()
                if not isinstance(error, self.errors):
                    raise
                failures, ends = failures + 1, ends or time.monotonic() + RETRY_SECONDS
                again = self.may_retry(connection, error, safe=safe, restart=restart)
                if not again or time.monotonic() > ends:
                    raise self.failure(connection, error, unknown=not safe, conflict=not restart) from error
            finally:
                self.pool.give_back(connection, usable=usable)
            time.sleep(random.random() * 0.02 * failures)

    @contextmanager
    def transaction(self, *, snapshot: bool) -> Iterator[C]:
        """One transaction of several round trips. `snapshot`: it only reads, from one snapshot."""
        connection = self.pool.borrow(WAIT_SECONDS)
        done = usable = False
        try:
            connection.begin(snapshot=snapshot)
            yield connection
            done = True
            connection.finish()
            usable = True
        except Exception as error:
            usable = connection.undone()
            if isinstance(error, self.errors):
                raise self.failure(connection, error, unknown=done) from error
            raise
        finally:
            self.pool.give_back(connection, usable=usable)

    def failure(self, connection: C, error: Exception, *, unknown: bool, conflict: bool = True) -> Exception:
        """What to raise. `unknown`: the call may have been done before the connection broke."""
        found = self.conflict(error) if conflict else None
        if found is not None:
            return found
        if not self.is_lost(connection, error):
            return self.translated(error)
        broke = f"the connection to {self.place} broke during the call ({self.said(error)})"
        if unknown:
            return OutcomeUnknown(f"{broke}: it may or may not be stored; check before retrying")
        return StoreUnavailable(f"{broke}: check that the server runs")

    def close(self) -> None:
        """Close for good."""
        self.pool.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's connections must not be used here."""
        self.pool.reset()
