"""The broker: a program's handle on one store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from math import inf
from types import TracebackType
from typing import Unpack
from uuid import UUID

from penstock.broker.bind import BoundBroker, driver_connection
from penstock.broker.session import Session, SessionHandle, SessionInfo, session_id
from penstock.broker.stats import TubeInfo
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import DEFAULT_KIND, create_tube, open_tube
from penstock.core.options import TubeOptions
from penstock.core.results import Finding
from penstock.core.task import Task
from penstock.core.values import Seconds, flag, number, span_ms
from penstock.engine.sessions import read_lapse
from penstock.engine.store import Store
from penstock.operations.operation import Operation, blocking
from penstock.runtime.runtime import BrokerRuntime
from penstock.store.open import open_store

DEFAULT_URL = "sqlite:///penstock.db"


def connect(url: str | None = None, *, pool: str | None = None, clock: Callable[[], int] | None = None) -> Broker:
    """Open the store that a URL names: PENSTOCK_URL if none is given, else one SQLite file, penstock.db.

    `pool` puts a database behind a Redis: the database has every task, and Redis is an index that may be lost.
    `clock` replaces the store's clock, for tests.
    """
    read_lapse()
    return Broker(open_store(default_url() if url is None else url, clock, pool))


def default_url() -> str:
    """The URL for programs that give none: PENSTOCK_URL, or an SQLite file in the current folder."""
    return os.environ.get("PENSTOCK_URL") or DEFAULT_URL


class Broker:
    """Opens tubes and sessions on one store. Safe to use from several threads; a forked child gets new sessions."""

    def __init__(self, store: Store) -> None:
        #: Internal: what the handles of this broker share.
        self.runtime = BrokerRuntime(store)
        #: Internal: the broker's implicit session.
        self.session_handle = SessionHandle(self.runtime, implicit=True)

    def tube(self, name: str, kind: str | None = None, **options: Unpack[TubeOptions]) -> Tube:
        """Open a tube, and create it (default kind fifottl) if it is missing.

        TubeMismatch if the stored one has another kind or option.
        """
        return open_tube(self.runtime, self.session_handle, name, kind, options)

    def create_tube(self, name: str, kind: str | None = DEFAULT_KIND, **options: Unpack[TubeOptions]) -> Tube:
        """Create a tube (default kind fifottl); TubeExists if it is there."""
        return create_tube(self.runtime, self.session_handle, name, kind, options)

    def tubes(self) -> list[TubeInfo]:
        """List all tubes of the store, by name."""
        tubes = self.runtime.store.load_tubes()
        return [TubeInfo(tube.name, tube.kind.name, dict(tube.given)) for tube in tubes]

    @blocking
    def take(
        self, names: Iterable[str], timeout: Seconds | None = None, *, max_pri: int | None = None
    ) -> Operation[Task | None]:
        """Take the first ready task of the first of these tubes that has one; None if none came in time.

        timeout None waits forever, 0 never waits. NoSuchTube if one of them does not exist.
        """
        return (yield from self.session_handle.take_first(names, timeout, max_pri))

    def session(self, ttr: Seconds | None = 0, id: str | UUID | None = None) -> Session:
        """Begin a session or, with `id`, join a live one; NotFound if that is unknown or has lapsed.

        When it ends, its tasks stay taken for `ttr` seconds, in which another process can join it.
        """
        handle = SessionHandle(self.runtime, ttr=0 if ttr is None else span_ms("ttr", ttr), id=session_id(id))
        return Session(self.runtime, handle)

    def sessions(self, *, since: float | None = None, until: float | None = None) -> list[SessionInfo]:
        """List the live sessions of the store on all hosts, oldest first, with ended ones that can still be joined.

        `since` and `until`, in seconds since the epoch, keep those whose last heartbeat is not before or not after it.
        """
        first = -inf if since is None else number("since", since)
        last = inf if until is None else number("until", until)
        self.runtime.reap_if_due()
        return [
            SessionInfo(found.id, found.host, found.pid, found.heartbeat / 1000, found.held, found.waits)
            for found in self.runtime.store.sessions()
            if first <= found.heartbeat / 1000 <= last
        ]

    def bind(self, connection: object) -> BoundBroker:
        """Put and ack inside the caller's own transaction, on SQL stores.

        `connection` is one of the store's driver (SQLite: apsw), or of SQLAlchemy or Django with that driver. It must
        be on the same database, inside a transaction.
        """
        return BoundBroker(self.runtime.store.bind(driver_connection(connection)), self.session_handle)

    def check(self, repair: bool | None = False) -> list[Finding]:
        """Cross-check everything stored. Returns the inconsistencies and their remedies; repair=True applies them."""
        return self.runtime.store.check(repair is not None and flag("repair", repair))

    def close(self) -> None:
        """Release the tasks that its sessions hold, wake their blocked takes, and close the store."""
        self.runtime.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
