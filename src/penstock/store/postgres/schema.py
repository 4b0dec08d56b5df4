"""The schema: made at open, by one process at a time."""

from __future__ import annotations

from uuid import uuid4

import psycopg

from penstock.errors import StoreUnavailable
from penstock.store.postgres import faults
from penstock.store.postgres.location import Location, locate
from penstock.store.postgres.queries import queries
from penstock.store.postgres.wire import Link
from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of

MIGRATIONS = load_migrations("penstock.store.postgres")
_OLDEST_SERVER = 130000
_ANOTHER = "schema (?schema=…)"


def migrate(db: Link, location: Location) -> str:
    """Bring the schema up to date; the store's random id."""
    ask = queries(location).all
    try:
        version, standby = db.run([(ask.server, {})], prepare=False)[0][0]
        if version < _OLDEST_SERVER:
            raise StoreUnavailable(f"{location.place} runs PostgreSQL {version // 10000}: penstock needs 13 or later")
        if standby:
            raise StoreUnavailable(f"{location.place} is a standby, which cannot be written: connect to the primary")
        found = _stored(db, location)
        must_fit(_named(location), found and found[0], MIGRATIONS, new=_ANOTHER)
        if found is None or found[0] < MIGRATIONS[-1].number:
            with db.transaction():
                found = _upgrade(db, location)
    except psycopg.Error as error:
        raise faults.translated(error, location.place) from error
    return found[1]


def _named(location: Location) -> str:
    return f"schema {location.schema} of {location.place}"


def look(url: str) -> Schema:
    """Which schema a store has; nothing is changed."""
    location = locate(url)
    try:
        with Link.connect(location.conninfo, autocommit=True) as db:
            found = _stored(db, location)
    except psycopg.Error as error:
        raise faults.translated(error, location.place) from error
    stored = None if found is None else found[0]
    must_fit(_named(location), stored, MIGRATIONS, new=_ANOTHER)
    return schema_of(stored, MIGRATIONS)


def _stored(db: Link, location: Location) -> tuple[int, str] | None:
    """The number of the newest migration and the store's id, unless it is new."""
    ask = queries(location).all
    if not db.run([(ask.has_meta, {"schema": location.schema})], prepare=False)[0]:
        return None
    number, id = db.run([(ask.get_meta, {"name": name}) for name in ("schema", "id")], prepare=False)
    return (int(number[0][0]), str(id[0][0])) if number and id else None


def _upgrade(db: Link, location: Location) -> tuple[int, str]:
    """Apply what is missing, alone; another process may have done it while we waited."""
    ask = queries(location).all
    db.run([(ask.lock_schema, {"schema": location.schema})], prepare=False)
    number, id = _stored(db, location) or (0, "")
    if not id:
        id = str(uuid4())
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {location.quoted}".encode())
        db.run([(ask.create_meta, {}), (ask.set_meta, {"name": "id", "value": id})], prepare=False)
    for migration in MIGRATIONS:
        if migration.number > number:
            db.execute(migration.sql.replace("{schema}", location.quoted).encode())
            number = migration.number
    db.run([(ask.set_meta, {"name": "schema", "value": str(number)})], prepare=False)
    return number, id
