"""The schema, made at open by one process at a time, and the queries on it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from uuid import uuid4

import psycopg

from penstock.core.results import Counts
from penstock.errors import StoreUnavailable
from penstock.store.postgres import postgres_connection as connection
from penstock.store.postgres.postgres_connection import Location, locate
from penstock.store.postgres.wire import Link, Query
from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of
from penstock.store.sql.sql_queries import BRIEF, COLUMNS, RECORD, load_queries

MIGRATIONS = load_migrations("penstock.store.postgres")
_OLDEST_SERVER = 130000

# Counters by the names of `Counts`: what is stored, then calls; and those that a change of tasks may add to.
COUNTERS = {name: name if place < 5 else f"{name}_calls" for place, name in enumerate(Counts.__struct_fields__)}
WEIGHTS = tuple(name for name in COUNTERS if name != "put")

_FRAGMENTS = {
    "brief": BRIEF.replace("state", "state::text"),
    "record": RECORD.replace("state", "state::text"),  # a state is one letter, of a type of its own
    "counters": ", ".join(COUNTERS.values()),
    "sums": ", ".join(f"coalesce(sum({column}), 0)::bigint AS {column}" for column in COUNTERS.values()),
    "folded": ", ".join(f"{column} = c.{column} + n.{column}" for column in COUNTERS.values()),
    "raised": ", ".join(f"{column} = {column} + :{name}" for name, column in COUNTERS.items()),
    "weighed": ", ".join(COUNTERS[name] for name in WEIGHTS),
    "weights": ", ".join(f"n * w[{place}]" for place in range(1, len(WEIGHTS) + 1)),
    "for_update": "FOR UPDATE",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "imported": ", ".join(column for field, column in COLUMNS.items() if field != "id"),
}
_TABLE = re.compile(r"\bpenstock_(?=[a-z{])")
_LOCKS = re.compile(r"FOR UPDATE(?! (?:OF|SKIP))")
# Loads whose tasks may be changed next, so that their groups are needed.
_LOADS = ("by_id", "by_ids", "by_names", "due", "find_taken", "buried", "members", "unstarted", "page")
# Flushes of passed deadlines and group moves skip locked rows: the client that locked them applies them.
_PASSING = ("flush", "change_group")


def _texts() -> dict[str, str]:
    texts = vars(load_queries("penstock.store.postgres", shared=True, fragments=_FRAGMENTS))
    for name in _LOADS:
        texts[name] = texts["with_groups"].replace("{load}", texts[name])
    for name in _PASSING:
        texts[f"{name}_passing"] = _LOCKS.sub("FOR UPDATE SKIP LOCKED", texts[name])
    return texts


_TEXTS = _texts()


class Queries(SimpleNamespace):
    """The named queries on all tasks of one schema; `durable` and `temporary` have those on the tasks of such tubes.

    Each is made when it is first used, because few of them are. The server cuts the names of statements at 63 bytes.
    """

    def __init__(self, location: Location, table: str = "penstock_task") -> None:
        super().__init__(location=location, table=table)
        if table == "penstock_task":
            self.durable, self.temporary = (Queries(location, f"penstock_{name}") for name in ("durable", "temporary"))

    def __getattr__(self, name: str) -> Query:
        if name not in _TEXTS:
            raise AttributeError(name)
        text = _TABLE.sub(f"{self.location.quoted}.penstock_", _TEXTS[name].replace("penstock_task", self.table))
        # After the tables, because a channel's name may look like a table's.
        query = Query(
            text.replace("{channel}", self.location.channel), f"{self.location.channel[-8:]}.{self.table[9:13]}.{name}"
        )
        setattr(self, name, query)
        return query


def migrate(db: Link, location: Location) -> str:
    """Bring the schema up to date; the store's random id."""
    ask = Queries(location)
    try:
        version, standby = db.run([(ask.server, {})])[0][0]
        if version < _OLDEST_SERVER:
            raise StoreUnavailable(f"{location.place} runs PostgreSQL {version // 10000}: penstock needs 13 or later")
        if standby:
            raise StoreUnavailable(f"{location.place} is a standby, which cannot be written: connect to the primary")
        meta = _meta(db, location)
        if meta.get("schema") != str(MIGRATIONS[-1].number):
            with db.transaction():
                meta = _upgrade(db, location)
    except psycopg.Error as error:
        raise connection.translated(error, location.place) from error
    return meta["id"]


def look(url: str) -> Schema:
    """Which schema a store has; nothing is changed."""
    location = locate(url)
    try:
        with Link.connect(location.conninfo, autocommit=True) as db:
            meta = _meta(db, location)
    except psycopg.Error as error:
        raise connection.translated(error, location.place) from error
    return schema_of(int(meta["schema"]) if meta else None, MIGRATIONS)


def _meta(db: Link, location: Location) -> dict[str, str]:
    """What is known of a store, nothing of a new one; SchemaMismatch where it does not fit."""
    try:
        with db.transaction():
            meta: dict[str, str] = dict(db.run([(Queries(location).meta, {})])[0])
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        meta = {}
    stored = int(meta["schema"]) if "schema" in meta else None
    must_fit(f"schema {location.schema} of {location.place}", stored, MIGRATIONS, new="schema (?schema=…)")
    return meta


def _upgrade(db: Link, location: Location) -> dict[str, str]:
    """Apply what is missing, alone; another process may have done it while we waited."""
    ask = Queries(location)
    db.run([(ask.lock_schema, {"schema": location.schema})])
    meta = _meta(db, location)
    if not meta:
        meta = {"id": str(uuid4()), "schema": "0"}
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {location.quoted}".encode())
        db.run([(ask.create_meta, {})])
    for migration in MIGRATIONS:
        if migration.number > int(meta["schema"]):
            db.execute(migration.sql.replace("{schema}", location.quoted).encode())
            meta["schema"] = str(migration.number)
    db.run([(ask.set_meta, {"name": name, "value": value}) for name, value in meta.items()])
    return meta
