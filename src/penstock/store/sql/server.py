"""Transactions on a SQL server: a connection pool, and calls that are retried where that is safe."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, Generic, Protocol, TypeVar

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
from penstock.store.sql.migrations import ANOTHER_SCHEMA
from penstock.store.sql.sql_queries import Write
from penstock.system.forks import reset_in_child

# How long a call waits for a connection: long enough for a server to restart.
WAIT_SECONDS = 5.0
# How long a call is retried after a deadlock or a broken connection. A deadlock costs little, and one of the two sides
# always wins; a timed-out wait for a lock has already cost two seconds.
RETRY_SECONDS = 5.0

# The meaning of a server's error: the exception to raise, and its message after the server's name.
Meaning = tuple[type[StoreError], str]
AWAY: Meaning = StoreUnavailable, "cannot be reached ({text}): check that it runs and accepts this user"
BUSY: Meaning = StoreBusy, "has rows that other transactions kept locked ({text}): try again"
DENIED: Meaning = StoreUnavailable, "refused this user ({text}): check the URL and the user's rights"
USED_UP: Meaning = StoreFull, "has used up the ids of a tube ({text}): use another tube"
FULL: Meaning = StoreFull, "has no space left ({text}): free some; deletes and acks may still work"
DAMAGED: Meaning = StoreCorrupt, "is damaged ({text}): it was left unchanged; restore a backup"
FOREIGN: Meaning = SchemaMismatch, f"has a different schema than this penstock expects ({{text}}): {ANOTHER_SCHEMA}"

T = TypeVar("T")


class Pooled(Protocol):
    """A connection that only one thread uses at a time."""

    def hung_up(self) -> bool:
        """Return whether the server has closed the idle connection. No round trip."""

    def close(self) -> None:
        """Close the connection, even if the server is unreachable."""


class Connection(Pooled, Protocol):
    """A connection to a SQL server."""

    def begin(self, *, snapshot: bool) -> None:
        """Begin a transaction of several round trips; with `snapshot`, a read-only one on one snapshot."""

    def finish(self) -> None:
        """Commit the transaction."""

    def undone(self) -> bool:
        """Roll back an open transaction after an error. Returns False if the connection broke."""


C = TypeVar("C", bound=Connection)
L = TypeVar("L", bound=Pooled)


class Pool(Generic[L]):
    """A pool of up to `size` connections, opened on demand and reused last in, first out. `place` names the server,
    `remedy` says what else helps if all are busy."""

    def __init__(self, connect: Callable[[float], L], size: int, place: str, remedy: str = "") -> None:
        self._connect = connect  # its argument: the seconds it may take
        self._size = size
        self._place = place
        self._remedy = remedy
        self._closed = False
        self.reset()

    def reset(self) -> None:
        """Forget all connections; for a forked child."""
        self.idle: list[L] = []
        # A permit for each connection that may be in use. A Semaphore, which is pure Python, would cost a put 4 µs.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._size):
            self._permits.put(None)

    def borrow(self, seconds: float) -> L:
        """Return a live connection. Raises StoreBusy if all are in use for too long, and whatever `connect` raises."""
        if self._closed:
            raise StoreUnavailable(f"this broker on {self._place} is closed: connect again")
        try:
            self._permits.get(timeout=seconds)
        except Empty:
            raise StoreBusy(
                f"all {self._size} connections to {self._place} were busy for {seconds} s: use fewer threads"
                f"{self._remedy}"
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

    def _pop(self) -> L | None:
        try:
            return self.idle.pop()
        except IndexError:  # another thread took it
            return None

    def give_back(self, link: L, *, usable: bool) -> None:
        """Return a connection to the pool. It is closed unless it is `usable`, that is, outside of any transaction."""
        if usable:
            self.idle.append(link)
        else:
            link.close()
        self._permits.put(None)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the pool. Connections in use are closed when they are returned."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the idle connections."""
        while (link := self._pop()) is not None:
            link.close()


class Server(ABC, Generic[C]):
    """Runs transactions on the connections of a pool. A subclass adds how to connect, what errors of its driver mean,
    and how the schema is stored. `place` names the server in messages.
    """

    #: Whether calls are part of the caller's own transaction (`Store.bind`).
    bound = False
    #: The named queries of the store.
    queries: SimpleNamespace
    #: The exceptions that the driver raises.
    errors: tuple[type[Exception], ...]

    def __init__(self, size: int, place: str) -> None:
        self.place = place
        self.pool = Pool(self.connect, size, place, ", or give the URL a larger pool_size")
        reset_in_child(self)

    @abstractmethod
    def open(self, seconds: float = 0) -> C:
        """Open a connection. Some stores retry an unreachable server for this many seconds."""

    def connect(self, seconds: float = 0) -> C:
        """Open a connection for the pool."""
        return self.open(seconds)

    # the schema (see `migrations`)

    @abstractmethod
    def must_suit(self, link: C) -> None:
        """Raise StoreUnavailable if the server is too old or read-only."""

    @abstractmethod
    def meta(self, link: C) -> dict[str, str]:
        """Return the store's metadata; empty for a new store."""

    @abstractmethod
    def set_meta(self, link: C, meta: dict[str, str]) -> None:
        """Write the store's metadata."""

    @abstractmethod
    def alone(self, link: C) -> AbstractContextManager[None]:
        """Hold the lock that keeps other processes from migrating."""

    @abstractmethod
    def apply(self, link: C, sql: str) -> None:
        """Run a migration."""

    # errors

    @abstractmethod
    def conflict(self, error: Exception) -> Conflict | None:
        """Return a Conflict if another transaction interfered or a guard failed, so that everything was rolled back."""

    @abstractmethod
    def is_lost(self, connection: C, error: Exception) -> bool:
        """Return whether the connection broke, so that the outcome of the call is unknown."""

    @abstractmethod
    def meaning(self, error: Exception) -> Meaning:
        """Return what an error means if the connection is intact or was never opened."""

    def text_of(self, error: Exception) -> str:
        """Return the text of an error, without details of the statement."""
        return str(error).strip().partition("\n")[0]

    def translated(self, error: Exception) -> StoreError:
        """Return the penstock error to raise instead, which says what to do next."""
        kind, message = self.meaning(error)
        return kind(f"{self.place} {message.format(text=self.text_of(error))}")

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Translate exceptions of the driver into penstock's."""
        try:
            yield
        except self.errors as error:
            raise self.translated(error) from error

    # calls

    def may_retry(self, connection: C, error: Exception, *, safe: bool, restart: bool) -> bool:
        """Return whether to retry a failed call."""
        return (restart and self.conflict(error) is not None) or (safe and self.is_lost(connection, error))

    def attempt(self, work: Callable[[C], T], *, safe: bool, restart: bool = False) -> T:
        """Run `work`, which is one transaction and commits itself. Returns its result.

        `safe`: `work` is idempotent, so retry it after its connection broke; otherwise a broken connection raises
        OutcomeUnknown. `restart`: retry it after a conflict; otherwise raise Conflict.
        """
        if self.bound:  # the owner of the transaction decides what to retry
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
        """Run a transaction of several round trips; with `snapshot`, a read-only one on one snapshot."""
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
        """Return the exception to raise. `unknown`: the call may have been applied before the connection broke."""
        found = self.conflict(error) if conflict else None
        if found is not None:
            return found
        if not self.is_lost(connection, error):
            return self.translated(error)
        broke = f"the connection to {self.place} broke during the call ({self.text_of(error)})"
        if unknown:
            return OutcomeUnknown(f"{broke}: it may or may not be stored; check before retrying")
        return StoreUnavailable(f"{broke}: check that the server runs")

    def close(self) -> None:
        """Close all connections."""
        self.pool.close()

    def after_fork(self) -> None:
        """Forget the parent's connections, which the forked child must not use."""
        self.pool.reset()


class ServerVault:
    """A server as a pool's database: implements `store.pool.vault.Database`, except for `queries` and `promise`. Its
    connections have `rows`, `change` and `write`."""

    def __init__(self, server: Server[Any], label: str, most_bytes: int) -> None:
        self._server = server
        self.label, self.most_bytes = label, most_bytes
        self.close = server.close

    def read(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._server.attempt(lambda link: link.rows(sql, arguments, alone=True), safe=True)

    def run(self, work: Callable[[Any], T]) -> T:
        def transaction(link: Any) -> T:
            link.begin(snapshot=False)
            done = work(link)
            link.finish()
            return done

        return self._server.attempt(transaction, safe=True, restart=True)

    def write(self, guard: tuple[str, Sequence[object]], writes: Sequence[Write]) -> None:
        self._server.attempt(lambda link: link.write(guard, writes), safe=True)
