"""Numbered migrations of a SQL store: `NNNN_word.sql`, applied in order, once each.

A migration is named `NNNN_word.sql` when it must run before new code starts, `NNNN_word_after.sql` when it may
only run once no old code is left; `migrate` applies the first sort at open.
"""

from __future__ import annotations

from importlib.resources import files

import msgspec


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    number: int
    name: str
    sql: str


def load_migrations(package: str) -> list[Migration]:
    """The migrations of a package's `migrations` folder, in order."""
    found = []
    for file in files(package).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text()))
    return sorted(found, key=lambda migration: migration.number)


class Schema(msgspec.Struct, frozen=True):
    """The schema of a store: which one it has (None: it is new), which one this penstock needs, and what is missing."""

    stored: int | None
    newest: int
    pending: list[str]


def schema_of(stored: int | None, migrations: list[Migration]) -> Schema:
    """What of these migrations a store has yet to get."""
    pending = [f"{each.number:04d}_{each.name}" for each in migrations if each.number > (stored or 0)]
    return Schema(stored, migrations[-1].number, pending)
