"""The schema: brought up to date at open, by one process at a time.

Tables are changed by numbered migrations. Functions stand whole in their own files and are all replaced whenever the
number moves, so a change of functions alone needs a migration of its own, be it empty.
"""

from __future__ import annotations

from importlib.resources import files
from types import SimpleNamespace
from uuid import uuid4

import psycopg
from psycopg import sql

from penstock.core.reply import REPLY_KIND
from penstock.errors import SchemaMismatch, StoreUnavailable
from penstock.store.postgres import faults, rows
from penstock.store.postgres.location import Location, locate
from penstock.store.sql.migrations import Schema, load_migrations, schema_of
from penstock.store.sql.queries import load_queries

MIGRATIONS = load_migrations("penstock.store.postgres")
FUNCTIONS = [file.read_text() for file in files("penstock.store.postgres").joinpath("functions").iterdir()]
_QUERIES = load_queries("penstock.store.postgres")
_OLDEST_SERVER = 130000
# Tables of earlier schemas were changed where they are defined, so their stores cannot be brought up to date.
_OLDEST_SCHEMA = 14
# What a reply tube is created with, where penstock_save_tube takes it after the name.
_REPLY_TUBE = sql.SQL(", ").join(map(sql.Literal, rows.tube_row(REPLY_KIND, {}))).as_string(None)


def queries(location: Location) -> SimpleNamespace:
    """The named queries, for this schema."""
    return SimpleNamespace(**{name: _placed(text, location) for name, text in vars(_QUERIES).items()})


def migrate(db: psycopg.Connection, location: Location) -> str:
    """Bring the schema up to date; the store's random id."""
    ask = queries(location)
    try:
        version, standby = db.execute(ask.server).fetchone() or (0, False)
        if version < _OLDEST_SERVER:
            raise StoreUnavailable(f"{location.place} runs PostgreSQL {version // 10000}: penstock needs 13 or later")
        if standby:
            raise StoreUnavailable(f"{location.place} is a standby, which cannot be written: connect to the primary")
        found = _stored(db, ask, location)
        if found is None or found[0] < MIGRATIONS[-1].number:
            with db.transaction():
                found = _upgrade(db, ask, location)
    except psycopg.Error as error:
        raise faults.translated(error, location.place) from error
    number, id = found
    if number > MIGRATIONS[-1].number:
        raise SchemaMismatch(
            f"{location.place} has schema {number}, this penstock knows up to {MIGRATIONS[-1].number}: upgrade penstock"
        )
    return id


def look(url: str) -> Schema:
    """Which schema a store has; nothing is changed."""
    location = locate(url)
    try:
        with psycopg.connect(location.conninfo) as db:
            found = _stored(db, queries(location), location)
    except psycopg.Error as error:
        raise faults.translated(error, location.place) from error
    return schema_of(None if found is None else found[0], MIGRATIONS)


def _stored(db: psycopg.Connection, ask: SimpleNamespace, location: Location) -> tuple[int, str] | None:
    """The number of the newest migration and the store's id, unless it is new."""
    if db.execute(ask.has_meta, (location.schema,)).fetchone() is None:
        return None
    number = db.execute(ask.get_meta, ("schema",)).fetchone()
    id = db.execute(ask.get_meta, ("id",)).fetchone()
    return (int(number[0]), str(id[0])) if number and id else None


def _upgrade(db: psycopg.Connection, ask: SimpleNamespace, location: Location) -> tuple[int, str]:
    """Apply what is missing, alone; another process may have done it while we waited."""
    db.execute(ask.lock_schema)
    number, id = _stored(db, ask, location) or (0, "")
    if id and number < _OLDEST_SCHEMA:
        raise SchemaMismatch(
            f"{location.place} has schema {number}, which this penstock cannot bring up to date: "
            "drain it with the version that made it, and begin a new one (?schema=…)"
        )
    if not id:
        id = str(uuid4())
        db.execute(ask.begin_schema)
        db.execute(ask.set_meta, ("id", id))
    for migration in MIGRATIONS:
        if migration.number > number:
            db.execute(_placed(migration.sql, location))
            number = migration.number
    db.execute(ask.unchecked)
    for text in FUNCTIONS:
        db.execute(_placed(text, location))
    db.execute(ask.set_meta, ("schema", str(number)))
    return number, id


def _placed(text: str, location: Location) -> str:
    placed = text.replace("{plans}", _QUERIES.plans).replace("{channel}", location.channel)
    return placed.replace("{reply_tube}", _REPLY_TUBE).replace("{schema}", location.quoted)
