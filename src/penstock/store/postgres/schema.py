"""The schema, made at open by one process at a time, and the queries on it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from uuid import uuid4

import msgspec
import psycopg

from penstock.core.results import Counts
from penstock.errors import StoreUnavailable
from penstock.store.postgres import connection
from penstock.store.postgres.location import Location, locate
from penstock.store.postgres.wire import Link, Query
from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of
from penstock.store.sql.queries import BRIEF, COLUMNS, RECORD, load_queries

MIGRATIONS = load_migrations("penstock.store.postgres")
_OLDEST_SERVER = 130000

# What statements run with, beside a lock_timeout. The tables grow from empty to millions of rows and shrink again
# within minutes, so plans must not depend on statistics: one made for an empty table would scan a full one.
_SETTINGS = {
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
    "enable_sort": "off", "jit": "off", "plan_cache_mode": "force_generic_plan",
}  # fmt: skip

# Fields of new tasks, given once where all tasks of a call have the same. Where some differ, another statement (name +
# "_mixed") takes these as arrays (field + "s"). A rank is base + clock * now - newest * id.
ENTRY_FIELDS = {
    "base1": "double precision", "clock1": "integer", "newest1": "integer", "base2": "double precision",
    "clock2": "integer", "newest2": "integer", "pri": "integer", "utube": "text", "ttl": "bigint", "ttr": "bigint",
    "delay": "bigint", "extra": "text", "reply_to": "text", "group_name": "text",
    "group_no": "integer", "unstarted": "integer",
}  # fmt: skip
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
    "entry_fields": ", ".join(f":{name}::{type} AS {name}" for name, type in ENTRY_FIELDS.items()),
    "entry_rows": "ROWS u(datas bytea, addresses text, place ordinality)",
    "imported": ", ".join(column for field, column in COLUMNS.items() if field != "id"),
}
_MIXED = {
    "entry_fields": ", ".join(f"coalesce(u.{name}s, :{name}) AS {name}" for name in ENTRY_FIELDS),
    "entry_rows": "ROWS u(datas bytea, addresses text, "
    + "".join(f"{name}s {type}, " for name, type in ENTRY_FIELDS.items())
    + "place ordinality)",
}
_TABLE = re.compile(r"\bpenstock_(?=[a-z{])")
_ROWS = re.compile(r"\bROWS (\w+)\(([^)]*)\)")
_LOCKS = re.compile(r"FOR UPDATE(?! (?:OF|SKIP))")
# Loads whose tasks may be changed next, so that their groups are needed.
_LOADS = ("by_id", "by_ids", "by_names", "due", "find_taken", "buried", "members", "unstarted", "page")
# Flushes of what is due or follows a group: what others have locked, they do.
_PASSING = ("flush", "flush_ends", "change_groups")


def _rows(match: re.Match[str]) -> str:
    """`ROWS u(a bigint, b text)` as unnest(:a::bigint[], :b::text[]) u(a, b); `n ordinality` numbers the rows."""
    columns = dict(column.split(maxsplit=1) for column in match[2].split(", "))
    arrays = ", ".join(f":{name}::{type}[]" for name, type in columns.items() if type != "ordinality")
    numbered = " WITH ORDINALITY" if "ordinality" in columns.values() else ""
    return f"unnest({arrays}){numbered} {match[1]}({', '.join(columns)})"


def _texts() -> dict[str, str]:
    texts = vars(load_queries("penstock.store.postgres", shared=True, fragments=_FRAGMENTS))
    mixed = vars(load_queries("penstock.store.postgres", shared=True, fragments=_FRAGMENTS | _MIXED))
    texts |= {f"{name}_mixed": mixed[name] for name in ("insert", "insert_queued")}
    for name in _LOADS:
        texts[name] = texts["with_groups"].replace("{load}", texts[name])
    for name in _PASSING:
        texts[f"{name}_passing"] = _LOCKS.sub("FOR UPDATE SKIP LOCKED", texts[name])
    return {name: _ROWS.sub(_rows, text) for name, text in texts.items()}


_TEXTS = _texts()


class Queries(msgspec.Struct, frozen=True):
    """Named queries: on all tasks, on those of durable tubes, and on those of temporary ones."""

    all: SimpleNamespace
    durable: SimpleNamespace
    temporary: SimpleNamespace


class _Placed(SimpleNamespace):
    """The queries for one schema and table; each is made when it is first used, because few of them are."""

    def __getattr__(self, name: str) -> Query:
        if name not in _TEXTS:
            raise AttributeError(name)
        location, table = self.__dict__["location"], self.__dict__["table"]
        text = _TABLE.sub(f"{location.quoted}.penstock_", _TEXTS[name].replace("penstock_task", table))
        query = Query(text.replace("{channel}", location.channel), f"{location.schema}.{table}.{name}")
        setattr(self, name, query)
        return query


def queries(location: Location) -> Queries:
    """The queries for the schema of a location."""
    tables = ("penstock_task", "penstock_durable", "penstock_temporary")
    return Queries(*(_Placed(location=location, table=table) for table in tables))


def settings_call(ask: SimpleNamespace, *, local: bool) -> tuple[Query, dict[str, object]]:
    """What gives a connection its settings; `local`: until the end of its transaction."""
    settings = _SETTINGS | {"lock_timeout": connection.PATIENCE}
    return ask.settings, {"name": list(settings), "setting": list(settings.values()), "local": local}


def migrate(db: Link, location: Location) -> str:
    """Bring the schema up to date; the store's random id."""
    ask = queries(location).all
    try:
        version, standby = db.run([(ask.server, {})], prepare=False)[0][0]
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
            meta: dict[str, str] = dict(db.run([(queries(location).all.meta, {})], prepare=False)[0])
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        meta = {}
    stored = int(meta["schema"]) if "schema" in meta else None
    must_fit(f"schema {location.schema} of {location.place}", stored, MIGRATIONS, new="schema (?schema=…)")
    return meta


def _upgrade(db: Link, location: Location) -> dict[str, str]:
    """Apply what is missing, alone; another process may have done it while we waited."""
    ask = queries(location).all
    db.run([(ask.lock_schema, {"schema": location.schema})], prepare=False)
    meta = _meta(db, location)
    if not meta:
        meta = {"id": str(uuid4()), "schema": "0"}
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {location.quoted}".encode())
        db.run([(ask.create_meta, {})], prepare=False)
    for migration in MIGRATIONS:
        if migration.number > int(meta["schema"]):
            db.execute(migration.sql.replace("{schema}", location.quoted).encode())
            meta["schema"] = str(migration.number)
    db.run([(ask.set_meta, {"name": name, "value": value}) for name, value in meta.items()], prepare=False)
    return meta
