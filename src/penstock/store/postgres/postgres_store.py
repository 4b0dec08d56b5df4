"""The PostgreSQL store: one schema of a database, used by any number of processes; and the database of a pool."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.engine.store import Store, finish_drops
from penstock.store.postgres.listener import Listener
from penstock.store.postgres.postgres_connection import BoundServer, PostgresServer, locate
from penstock.store.postgres.postgres_queries import Queries
from penstock.store.postgres.postgres_step import PostgresStep
from penstock.store.postgres.postgres_writes import plain_put
from penstock.store.sql.migrations import Schema, load_migrations, look, migrate
from penstock.store.sql.server import ServerVault
from penstock.store.sql.server_step import ServerStore, advice_on
from penstock.store.sql.sql_queries import load_queries

MIGRATIONS = load_migrations("penstock.store.postgres")


class PostgresStore(ServerStore):
    """The store in one schema."""

    server: PostgresServer
    queries: Queries
    watcher: Listener | None
    step_type = PostgresStep
    fold_chance = 0.002  # stats and capacity then read about a thousand rows
    plain_put = plain_put

    def fold(self, tube: Tube) -> None:
        self.server.send([self.queries.fold.call({})], safe=True)

    def bind(self, connection: object) -> PostgresStore:
        bound = BoundServer(self.server, connection, self.identity)
        return PostgresStore(bound, self.identity, self.clock, None)

    def describe(self) -> Description:
        location = self.server.location
        row = self.server.send([self.queries.describe.call({})], safe=True)[0][0]
        version, fsync, commit, pages, vacuum, connections, schema, oldest, queue = row
        advice = advice_on(location.pool_size, connections, oldest)
        if fsync != "on" or pages != "on":
            advice.append("fsync or full_page_writes is off: a crash can destroy the database; switch both on")
        if vacuum != "on":
            advice.append("autovacuum is off: the queue's dead rows stay forever; switch it on")
        if queue > 50:
            advice.append(f"the notification queue is {queue} % full: end the listener that does not read")
        where = f"{location.place} schema {location.schema}"
        return Description("PostgreSQL", version, where, promise(fsync, commit), schema, advice)


def open_postgres(url: str, clock: Callable[[], int] | None = None) -> Store:
    """Open the store in a schema; create or migrate it if needed."""
    location = locate(url)
    server = PostgresServer(location)
    listener = Listener(server) if location.notify else None
    try:
        place = f"schema {location.schema} of {location.place}"
        identity = f"postgresql:{migrate(server, MIGRATIONS, place, new='schema (?schema=…)')}"
        store = PostgresStore(server, identity, clock, listener)
        finish_drops(store)
    except BaseException:
        server.close()
        raise
    return store


def look_at_postgres(url: str) -> Schema:
    """Return which schema a store has. Changes nothing."""
    return look(PostgresServer(locate(url)), MIGRATIONS)


def promise(fsync: str, commit: str) -> str:
    """Return what the two settings mean for the durability of a put that returned."""
    returned = "a put that returned survives"
    if fsync != "on":
        return f"{returned} the end of any client; a crash of the server may lose everything (fsync=off)"
    if commit == "off":
        lost = "may lose the last moments (synchronous_commit=off)"
        return f"{returned} the end of any client; a crash of the server {lost}"
    return f"{returned} a power cut (synchronous_commit={commit})"


# a pool's database

_VAULT = {
    "int": "bigint", "blob": "bytea", "serial": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "table_end": ")",
    "keyed_end": ")", "for_update": "FOR UPDATE", "among_ids": "= ANY (%s::bigint[])",
    "among_names": "= ANY (%s::bytea[])",
}  # fmt: skip


class PostgresVault(ServerVault):
    """A pool's database in one schema."""

    def __init__(self, url: str) -> None:
        location = locate(url)
        # The server limits both a value and the message that contains it to 2^30 bytes.
        super().__init__(PostgresServer(location, bare=True), location.place, 2**30 - 2**20)
        placed = f"{location.quoted}.penstock_pool_"
        queries = vars(load_queries("penstock.store.pool", fragments=_VAULT))
        self.queries = SimpleNamespace(
            # A lock, because two processes that create the same table at once would both fail.
            create_alone="SELECT pg_advisory_xact_lock(hashtext('penstock_pool'))",
            create_schema=f"CREATE SCHEMA IF NOT EXISTS {location.quoted}",
            **{name: sql.replace("penstock_pool_", placed) for name, sql in queries.items()},
        )

    def promise(self) -> str:
        settings = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
        return promise(*self.read(settings)[0])
