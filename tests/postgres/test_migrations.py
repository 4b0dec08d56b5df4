"""A store of an earlier schema is brought up to date when it is opened."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.store.postgres import schema
from penstock.store.postgres.location import locate
from tests.behaviour.verbs import drain
from tests.postgres.schemas import damage

OLDER = range(schema._OLDEST_SCHEMA, schema.MIGRATIONS[-1].number)


@pytest.mark.parametrize("number", OLDER)
def test_a_store_of_an_earlier_schema_is_migrated(url: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    location, missing = locate(url), [one for one in schema.MIGRATIONS if one.number > number]
    with monkeypatch.context() as patched, psycopg.connect(location.conninfo, autocommit=True) as db:
        patched.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[: -len(missing)])
        schema.migrate(db, location)
    assert schema.look(url).pending == [f"{one.number:04d}_{one.name}" for one in missing]
    with penstock.connect(url) as broker:
        assert broker._hub.store.describe().schema == missing[-1].number
        broker.tube("work").put_many(["a", "b"])
        assert drain(broker.tube("work")) == ["a", "b"]
        assert broker.check() == []


def test_functions_are_replaced_when_the_number_moves(url: str) -> None:
    penstock.connect(url).close()
    damage(url, "UPDATE penstock_meta SET value = '16' WHERE name = 'schema'")
    damage(url, "CREATE OR REPLACE FUNCTION penstock_now(p_now bigint) RETURNS bigint LANGUAGE sql AS 'SELECT p_now'")
    with penstock.connect(url) as broker:
        assert broker.tube("work").put("x").created > 1e9


def test_every_function_names_what_there_is(url: str) -> None:
    penstock.connect(url).close()
    location = locate(url)
    with psycopg.connect(location.conninfo) as db:
        for text in schema.FUNCTIONS:
            db.execute(schema._placed(text, location).encode())  # the server checks them, now that all are there
