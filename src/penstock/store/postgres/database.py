"""The PostgreSQL store: one schema of a database, used by any number of processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import psycopg

from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.port import Conflict
from penstock.engine.store import EngineStore
from penstock.errors import PenstockError
from penstock.store.postgres import connection
from penstock.store.postgres.bound import BoundConnection
from penstock.store.postgres.connection import Connections
from penstock.store.postgres.describe import describe
from penstock.store.postgres.listener import PROCESS, BoundTeller, Listener, Teller
from penstock.store.postgres.location import locate
from penstock.store.postgres.puts import plain_put
from penstock.store.postgres.queries import Queries, queries
from penstock.store.postgres.schema import migrate
from penstock.store.postgres.step import PostgresStep
from penstock.store.postgres.takes import Lost
from penstock.store.postgres.wire import Link
from penstock.store.sql.waiters import Waiters

# Counters are added up once in so many calls, so that stats and capacity add up a thousand rows or so.
_FOLD_CHANCE = 0.002


class PostgresDatabase:
    """Keeps `engine.port.Database` in one schema."""

    shared = True
    remote = True

    def __init__(
        self, connections: Connections, asked: Queries, identity: str, clock: Callable[[], int] | None,
        teller: Teller, listener: Listener | None,
    ) -> None:  # fmt: skip
        self.connections = connections
        self.queries = asked
        self.identity = identity
        self.clock = clock
        self.teller = teller
        self.listener = listener
        self.waiters = Waiters()
        self.lost: list[Lost] = []  # takes without an answer

    @property
    def watcher(self) -> str | None:
        """The process that is told of ends from now on, while it looks for one now and then; None where none can be."""
        return PROCESS.name if self.listener is not None else None

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> PostgresStep:
        moment = self.clock() if now is None and self.clock is not None else now
        # A look at everything, or a repair of it, is one transaction.
        return PostgresStep(self, tubes, write=write, held=not tubes and size > 1, now=moment)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        return plain_put(self, tube, entry)

    def fold_sometimes(self) -> None:
        """Now and then, add the counters up. What fails here, another call does."""
        if random.random() < _FOLD_CHANCE and self.connections.relaxes:
            try:
                self.connections.run([(self.queries.all.fold, {})], twice=True)
            except (PenstockError, Conflict):
                pass

    def bind(self, connection: object) -> PostgresDatabase:
        bound = BoundConnection(self.connections, connection, self.queries.all, self.identity)
        return PostgresDatabase(bound, self.queries, self.identity, self.clock, BoundTeller(self.teller.on), None)

    def describe(self) -> Description:
        row = self.connections.run([(self.queries.all.describe, {})], twice=True)[0][0]
        return describe(row, self.connections.location)

    def now(self) -> int:
        if self.clock is not None:
            return self.clock()
        return int(self.connections.run([(self.queries.all.clock, {"now": None})], twice=True)[0][0][0])

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self.listener is not None:
            return self.listener.wait(wake, seconds, watch=watch)
        wake.wait(max(seconds, 0))
        return False

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        self.connections.close()


def open_postgres(url: str, clock: Callable[[], int] | None = None) -> EngineStore:
    """The store in a schema, created or brought up to date."""
    location = locate(url)
    asked = queries(location)
    settings = asked.all.settings, {"local": not location.notify, "patience": connection.PATIENCE}

    def begin(db: Link) -> None:
        """What is done with a new connection: it gets its settings, and temporary tubes are as a crash left them."""
        if location.notify:
            db.run([settings], prepare=False)
        for (no,) in db.run([(asked.all.broken, {})], prepare=False)[0]:
            _mend(db, asked, no)

    connections = Connections(location, begin, settings)
    listener = Listener(connections) if location.notify else None
    try:
        with connections.connect() as db:
            identity = f"postgresql:{migrate(db, location)}"
        database = PostgresDatabase(connections, asked, identity, clock, Teller(location.notify), listener)
        store = EngineStore(database)
        store.finish_drops()
    except BaseException:
        connections.close()
        raise
    return store


def _mend(db: psycopg.Connection, asked: Queries, no: int) -> None:
    """Put right what is kept of a temporary tube whose tasks are gone; the first to come does it."""
    assert isinstance(db, Link)
    with db.transaction():
        if db.run([(asked.all.mend, {"tube": no})], prepare=False)[0]:
            db.run([(asked.all.empty, {"tube": no})], prepare=False)
