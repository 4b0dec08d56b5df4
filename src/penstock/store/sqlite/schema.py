"""The schema of a file: brought up to date when it is opened, by one process at a time."""

from __future__ import annotations

import os
from uuid import uuid4

import apsw

from penstock.errors import SchemaMismatch
from penstock.store.sql.migrations import Schema, load_migrations, schema_of
from penstock.store.sqlite.connection import Connection
from penstock.store.sqlite.queries import Q

MIGRATIONS = load_migrations("penstock.store.sqlite")


def migrate(connection: Connection) -> str:
    """Bring the schema up to date; the store's random id."""
    with connection.durable as db:
        stored = _stored(db) or 0
        newest = MIGRATIONS[-1].number
        if stored > newest:
            raise SchemaMismatch(
                f"{connection.path} has schema {stored}, this penstock knows up to {newest}: upgrade penstock"
            )
        for migration in MIGRATIONS:
            if migration.number > stored:
                db.execute(migration.sql)
                db.execute(Q.set_meta, ("schema", str(migration.number)))
        id = db.execute(Q.get_meta, ("id",)).get
        if id is None:
            id = str(uuid4())
            db.execute(Q.set_meta, ("id", id))
        return str(id)


def look(path: str) -> Schema:
    """Which schema a file has; a missing one is not created."""
    if not os.path.exists(path):
        return schema_of(None, MIGRATIONS)
    connection = Connection(os.path.abspath(path), durable=True)
    try:
        with connection.reading as db:
            return schema_of(_stored(db), MIGRATIONS)
    finally:
        connection.close()


def _stored(db: apsw.Connection) -> int | None:
    return int(db.execute(Q.get_meta, ("schema",)).get) if db.execute(Q.has_meta).get else None
