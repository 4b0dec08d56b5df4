"""The queries of the PostgreSQL store, for one schema and for each of the two tables that tasks are in."""

from __future__ import annotations

import re
from types import SimpleNamespace

import msgspec

from penstock.store.postgres.location import Location
from penstock.store.postgres.wire import Query
from penstock.store.sql.queries import RECORD, load_queries

# A state is one letter, of a type of its own.
_TEXTS = vars(
    load_queries("penstock.store.postgres", shared=True, fragments={"record": RECORD.replace("state", "state::text")})
)
_TABLE = re.compile(r"\bpenstock_(?=[a-z{])")
_LOCKS = re.compile(r"FOR UPDATE(?! (?:OF|SKIP))")
# Flushes of what the clock or a group demands: what others are at, they do.
_PASSING = ("flush", "flush_ends", "change_groups")


class Queries(msgspec.Struct, frozen=True):
    """Named queries: on all tasks, on those of durable tubes, and on those of temporary ones."""

    all: SimpleNamespace
    durable: SimpleNamespace
    temporary: SimpleNamespace


def queries(location: Location) -> Queries:
    """The queries for the schema of a location."""
    texts = dict(_TEXTS)
    for name in _PASSING:
        texts[f"{name}_passing"] = _LOCKS.sub("FOR UPDATE SKIP LOCKED", texts[name])
    return Queries(
        *(_placed(texts, location, table) for table in ("penstock_task", "penstock_durable", "penstock_temporary"))
    )


def placed(text: str, location: Location) -> str:
    """A statement with the names of its tables in their schema."""
    return _TABLE.sub(f"{location.quoted}.penstock_", text).replace("{channel}", location.channel)


def _placed(texts: dict[str, str], location: Location, table: str) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            name: Query(placed(text.replace("penstock_task", table), location), f"{location.schema}.{table}.{name}")
            for name, text in texts.items()
        }
    )
