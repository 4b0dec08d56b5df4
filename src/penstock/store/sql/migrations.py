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
