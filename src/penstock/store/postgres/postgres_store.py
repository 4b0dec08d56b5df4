"""The PostgreSQL store: one schema of a database, used by any number of processes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.port import Conflict
from penstock.engine.store import Store, finish_drops
from penstock.errors import PenstockError
from penstock.store.postgres.changes import plain_put
from penstock.store.postgres.listener import BoundNotifier, Listener, Notifier
from penstock.store.postgres.location import Location, locate
from penstock.store.postgres.postgres_connection import BoundConnection, Connections, settings_call
from penstock.store.postgres.postgres_step import PostgresStep
from penstock.store.postgres.schema import Queries, migrate
from penstock.store.postgres.wire import Link, Row
from penstock.store.sql.waiters import Waiters

# How likely a call adds up the counters: stats and capacity then read about a thousand rows.
_FOLD_CHANCE = 0.002
# An answer that is older than this does not tell the server's clock any more.
_CLOCK_SECONDS = 10.0
# A transaction that is open longer keeps enough dead rows to slow down takes.
_LONG_SECONDS = 300


class PostgresStore(Store):
    """The store in one schema."""

    shared = True
    remote = True

    def __init__(
        self, connections: Connections, asked: Queries, identity: str, clock: Callable[[], int] | None,
        notifier: Notifier, listener: Listener | None,
    ) -> None:  # fmt: skip
        super().__init__(identity)
        self.connections = connections
        self.queries = asked
        self.clock = clock
        self.notifier = notifier
        self.listener = listener
        self.waiters = Waiters()
        self._heard: tuple[int, float] | None = None  # what the server's clock said, and when

    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> PostgresStep:
        moment = self.clock() if now is None and self.clock is not None else now
        # A look at everything, or a repair of it, is one transaction.
        return PostgresStep(self, tubes, write=write, held=not tubes and size > 1, now=moment)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        return plain_put(self, tube, entry)

    def fold_sometimes(self) -> None:
        """Now and then, add the counters up. If that fails, another call does it."""
        if random.random() < _FOLD_CHANCE and self.connections.relaxes:
            try:
                self.connections.run([(self.queries.fold, {})], twice=True)
            except (PenstockError, Conflict):
                pass

    def bind(self, connection: object) -> PostgresStore:
        bound = BoundConnection(self.connections, connection, self.queries, self.identity)
        return PostgresStore(bound, self.queries, self.identity, self.clock, BoundNotifier(self.notifier.on), None)

    def describe(self) -> Description:
        row = self.connections.run([(self.queries.describe, {})], twice=True)[0][0]
        return _described(row, self.connections.location)

    def now(self) -> int:
        if self.clock is not None:
            return self.clock()
        return int(self.connections.run([(self.queries.clock, {"now": None})], twice=True)[0][0][0])

    def heard(self, now: int) -> None:
        """Note the server's clock, which an answer brought."""
        self._heard = now, time.monotonic()

    def estimated_now(self) -> int | None:
        """The server's clock by its last answer, unless that is old; never ahead of it."""
        if self._heard is None:
            return None
        now, heard = self._heard
        passed = time.monotonic() - heard
        return now + int(passed * 1000) if passed < _CLOCK_SECONDS else None

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self.listener is not None:
            return self.listener.wait(wake, seconds, watch=watch)
        return super().wait(wake, seconds, watch=watch)

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        self.connections.close()


def open_postgres(url: str, clock: Callable[[], int] | None = None) -> Store:
    """The store in a schema, created or brought up to date."""
    location = locate(url)
    ask = Queries(location)
    settings = settings_call(ask, local=not location.notify)

    def begin(db: Link) -> None:
        """Give a new connection its settings, and mend temporary tubes whose tasks a crash of the server removed."""
        if location.notify:
            db.run([settings], prepare=False)
        for (no,) in db.run([(ask.broken, {})], prepare=False)[0]:
            with db.transaction():
                if db.run([(ask.mend, {"tube": no})], prepare=False)[0]:
                    db.run([(ask.empty, {"tube": no})], prepare=False)

    connections = Connections(location, begin, () if location.notify else (settings,))
    listener = Listener(connections) if location.notify else None
    try:
        with connections.connect() as db:
            identity = f"postgresql:{migrate(db, location)}"
        store = PostgresStore(connections, ask, identity, clock, Notifier(location.notify), listener)
        finish_drops(store)
    except BaseException:
        connections.close()
        raise
    return store


def _described(row: Row, location: Location) -> Description:
    """What the store promises by the server's settings, and what should be done about them."""
    version, fsync, commit, pages, vacuum, connections, schema, oldest, queue = row
    advice = []
    if fsync != "on" or pages != "on":
        advice.append("fsync or full_page_writes is off: a crash can destroy the database; switch both on")
    if vacuum != "on":
        advice.append("autovacuum is off: the queue's dead rows stay for ever; switch it on")
    if location.pool_size >= connections:
        advice.append(
            f"pool_size is {location.pool_size}, max_connections {connections}: lower the one, raise the other"
        )
    if oldest is not None and oldest > _LONG_SECONDS:
        advice.append(f"a transaction is open for {oldest} s and keeps dead rows from being removed: end it")
    if queue > 50:
        advice.append(f"the notification queue is {queue} % full: end the listener that does not read")
    where = f"{location.place} schema {location.schema}"
    return Description("PostgreSQL", version, where, promise(fsync, commit), schema, advice)


def promise(fsync: str, commit: str) -> str:
    """What the two settings mean for a put that returned."""
    returned = "a put that returned survives"
    if fsync != "on":
        return f"{returned} the end of any client; a crash of the server may lose everything (fsync=off)"
    if commit == "off":
        lost = "may lose the last moments (synchronous_commit=off)"
        return f"{returned} the end of any client; a crash of the server {lost}"
    return f"{returned} a power cut (synchronous_commit={commit})"
