"""The schema of a file: brought up to date when it is opened, by one process at a time."""

from __future__ import annotations

import os
from uuid import uuid4

import apsw

from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of
from penstock.store.sqlite.connection import Connection
from penstock.store.sqlite.queries import Q

MIGRATIONS = load_migrations("penstock.store.sqlite")


def migrate(connection: Connection) -> str:
    """Bring the schema up to date; the store's random id. A file of another penstock's schema is left as it is."""
    with connection.durable as db:
        stored = _stored(db, connection.path)
        for migration in MIGRATIONS:
            if migration.number > (stored or 0):
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
            return schema_of(_stored(db, path), MIGRATIONS)
    finally:
        connection.close()


def _stored(db: apsw.Connection, path: str) -> int | None:
    """The number of a file's schema, None for a new one; SchemaMismatch where it is not one of ours."""
    stored = int(db.execute(Q.get_meta, ("schema",)).get) if db.execute(Q.has_meta).get else None
    must_fit(path, stored, MIGRATIONS, new="file")
    return stored
