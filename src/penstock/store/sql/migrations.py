"""Numbered migrations of a SQL store: `NNNN_word.sql`, applied in order, once each, when a store is opened."""

from __future__ import annotations

from contextlib import closing
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock.errors import SchemaMismatch

if TYPE_CHECKING:
    from penstock.store.sql.server import Server

# The remedy if a statement fails because the schema changed while the store was open.
ANOTHER_SCHEMA = "a newer penstock has migrated it, or someone changed its tables: upgrade penstock and restart"


class Migration(msgspec.Struct, frozen=True):
    """One migration file."""

    number: int
    name: str
    sql: str


def load_migrations(package: str) -> list[Migration]:
    """Load the migrations of a package's `migrations` folder, in order."""
    found = []
    for file in files(package).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text()))
    return sorted(found, key=lambda migration: migration.number)


class Schema(msgspec.Struct, frozen=True):
    """The schema number of a store (None if it is new), the number this penstock needs, and the pending migrations."""

    stored: int | None
    newest: int
    pending: list[str]


def schema_of(stored: int | None, migrations: list[Migration]) -> Schema:
    """Return the schema of a store, with those of these migrations that are pending."""
    pending = [f"{each.number:04d}_{each.name}" for each in migrations if each.number > (stored or 0)]
    return Schema(stored, migrations[-1].number, pending)


def must_fit(place: str, stored: int | None, migrations: list[Migration], *, new: str) -> None:
    """Raise SchemaMismatch for a store that this penstock can neither use nor migrate.

    `place` names the store in the message; `new` says what to create instead: file, schema, database.
    """
    oldest, newest = migrations[0].number, migrations[-1].number
    if stored is not None and stored > newest:
        raise SchemaMismatch(f"{place} has schema {stored}, this penstock knows up to {newest}: upgrade penstock")
    if stored is not None and stored < oldest:
        raise SchemaMismatch(
            f"{place} has schema {stored}, this penstock reads {oldest} and later: export its tubes with the penstock "
            f"that made it and import them here, or use a new {new}"
        )


def migrate(server: Server[Any], migrations: list[Migration], place: str, *, new: str) -> str:
    """Migrate a store, one process at a time. Returns the store's random id."""
    newest = str(migrations[-1].number)
    with server.translating(), closing(server.open()) as link:
        server.must_suit(link)
        meta = server.meta(link)
        must_fit(place, _number(meta), migrations, new=new)
        if meta.get("schema") != newest:
            with server.alone(link):
                meta = {"id": str(uuid4()), **server.meta(link)}  # again: another process may have been faster
                for migration in migrations:
                    if migration.number > (_number(meta) or 0):
                        server.apply(link, migration.sql)
                server.set_meta(link, {**meta, "schema": newest})
        return meta["id"]


def look(server: Server[Any], migrations: list[Migration]) -> Schema:
    """Return which schema a store has. Changes nothing."""
    with server.translating(), closing(server.open()) as link:
        return schema_of(_number(server.meta(link)), migrations)


def _number(meta: dict[str, str]) -> int | None:
    return int(meta["schema"]) if "schema" in meta else None
