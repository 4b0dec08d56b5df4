"""The handle a program holds on one store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Unpack
from uuid import UUID

from penstock.broker.bind import Bound
from penstock.broker.session import Session, SessionInfo, session_id
from penstock.broker.session_handle import Seat
from penstock.broker.stats import TubeInfo
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import DEFAULT_KIND, create_tube, open_tube
from penstock.core.numbers import span_ms
from penstock.core.options import TubeOptions
from penstock.core.results import Finding
from penstock.core.shapes import flag
from penstock.core.task import Task
from penstock.operations.operation import Flow, verb
from penstock.runtime.runtime import Hub
from penstock.store.contract import TransferStore
from penstock.store.open import open_store

DEFAULT_URL = "sqlite:///penstock.db"


def connect(url: str | None = None, *, pool: str | None = None, clock: Callable[[], int] | None = None) -> Broker:
    """Open the store that a URL names: PENSTOCK_URL when none is given, else one SQLite file, penstock.db.

    `pool` puts a database behind a Redis: it has every task, and Redis is an index that may be lost.
    `clock` replaces the store's clock, for tests.
    """
    if url is None:
        url = os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    return Broker(open_store(url, clock, pool))


class Broker:
    """Opens tubes and sessions on one store. Safe to use from several threads; a forked child begins anew."""

    def __init__(self, store: TransferStore) -> None:
        self._hub = Hub(store)
        self._seat = Seat(self._hub, implicit=True)

    def tube(self, name: str, kind: str | None = None, **options: Unpack[TubeOptions]) -> Tube:
        """Open a tube, and create it (default kind fifottl) when it is missing.

        TubeMismatch when the stored one has another kind or option than asked for.
        """
        return open_tube(self._hub, self._seat, name, kind, options)

    def create_tube(self, name: str, kind: str | None = DEFAULT_KIND, **options: Unpack[TubeOptions]) -> Tube:
        """Create a tube (default kind fifottl); TubeExists when it is there."""
        return create_tube(self._hub, self._seat, name, kind, options)

    def tubes(self) -> list[TubeInfo]:
        """All tubes of the store, by name."""
        tubes = self._hub.store.load_tubes()
        return [TubeInfo(tube.name, tube.kind.name, dict(tube.given)) for tube in tubes]

    @verb
    def take(
        self, names: Iterable[str], timeout: float | None = None, *, max_pri: int | None = None
    ) -> Flow[Task | None]:
        """The first ready task of the first of these tubes that has one; None when nothing came in time.

        timeout None waits for ever, 0 never waits. NoSuchTube when one of them does not exist.
        """
        return (yield from self._seat.take_first(names, timeout, max_pri))

    def session(self, ttr: float | None = 0, id: str | UUID | None = None) -> Session:
        """Begin a session, or with id join a live one; NotFound when that is unknown or has lapsed.

        After its end its tasks stay taken for ttr seconds, for whoever joins it in that time.
        """
        return Session(self._hub, Seat(self._hub, ttr=0 if ttr is None else span_ms("ttr", ttr), id=session_id(id)))

    def sessions(self) -> list[SessionInfo]:
        """The live sessions of the store, all hosts', oldest first; also those ended that can still be joined."""
        self._hub.tend()
        return [
            SessionInfo(found.id, found.host, found.pid, found.heartbeat / 1000, found.held, found.waits)
            for found in self._hub.store.sessions()
        ]

    def bind(self, connection: object) -> Bound:
        """The verbs put, put_many and ack inside the caller's own transaction, on SQL stores.

        `connection` is of the store's own driver (SQLite: apsw), on the same database, with a transaction begun.
        """
        return Bound(self._hub.store.bind(connection), self._seat)

    def check(self, repair: bool | None = False) -> list[Finding]:
        """Cross-check everything stored: every state that must not exist, and what mends it; repair mends it."""
        return self._hub.store.check(repair is not None and flag("repair", repair))

    def close(self) -> None:
        """Release what its sessions still hold, wake their blocked takes, and let go of the store."""
        self._hub.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
