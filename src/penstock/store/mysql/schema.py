"""The schema: its migrations, applied once each by one process at a time."""

from __future__ import annotations

from uuid import uuid4

import pymysql

from penstock.errors import StoreBusy, StoreUnavailable
from penstock.store.mysql.connection import Link
from penstock.store.mysql.faults import CHANGED_BEFORE, NO_SUCH_TABLE, number
from penstock.store.mysql.location import parse
from penstock.store.mysql.queries import Q
from penstock.store.mysql.server import Server
from penstock.store.sql.migrations import Schema, load_migrations, must_fit, schema_of

MIGRATIONS = load_migrations("penstock.store.mysql")
_NEWEST = MIGRATIONS[-1].number
# How long one process waits for another one's migration.
_MIGRATE_SECONDS = 60


def migrate(database: Server) -> str:
    """Bring the schema up to date. Returns the store's random id."""
    return database.run(lambda link: _migrate(link, database.name), safe=True)


def look(url: str) -> Schema:
    """Which schema a store has; nothing is changed."""
    database = Server(parse(url))
    try:
        meta = database.run(_meta, safe=True)
    finally:
        database.close()
    return schema_of(int(meta["schema"]) if "schema" in meta else None, MIGRATIONS)


def _migrate(link: Link, where: str) -> str:
    meta = _meta(link)
    stored = int(meta["schema"]) if "schema" in meta else None
    must_fit(f"database {where}", stored, MIGRATIONS, new="database")
    if stored == _NEWEST and "id" in meta:
        return meta["id"]
    version = str(link.rows(Q.settings)[0][0])
    least = (10, 6) if "mariadb" in version.lower() else (8, 0)  # the first with SKIP LOCKED and JSON_TABLE
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < least:
        raise StoreUnavailable(f"database {where} is {version}: use MariaDB 10.6 or later, or MySQL 8 or later")
    (locked,) = link.rows(Q.lock_schema, (_MIGRATE_SECONDS,))[0]
    if not locked:
        raise StoreBusy(f"another process migrates database {where} for over {_MIGRATE_SECONDS} s: look there")
    try:
        return _apply(link)
    finally:
        link.rows(Q.unlock_schema)


def _apply(link: Link) -> str:
    meta = _meta(link)  # again: another process may have been faster
    stored = int(meta.get("schema", 0))
    for migration in MIGRATIONS:
        if migration.number > stored:
            for statement in split(migration.sql):  # each may run twice: they commit by themselves
                _run(link, statement)
    link.change(Q.set_meta, ("schema", str(_NEWEST)))
    id = meta.get("id") or str(uuid4())
    link.change(Q.set_meta, ("id", id))
    link.commit()
    return id


def _run(link: Link, statement: str) -> None:
    try:
        link.change(statement)
    except pymysql.err.OperationalError as error:
        if number(error) not in CHANGED_BEFORE:  # it ran before a crash
            raise


def _meta(link: Link) -> dict[str, str]:
    try:
        return dict(link.rows(Q.all_meta))
    except pymysql.err.ProgrammingError as error:
        if number(error) != NO_SUCH_TABLE:
            raise
        return {}


def split(sql: str) -> list[str]:
    """The statements of a migration: each ends with a line's `;`."""
    lines = [line.partition("--")[0].rstrip() for line in sql.splitlines()]
    return [statement for text in "\n".join(lines).split(";\n") if (statement := text.strip().rstrip(";"))]
