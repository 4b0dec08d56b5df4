"""A store of an earlier schema is brought up to date when it is opened."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.store.postgres import schema
from penstock.store.postgres.location import locate
from tests.behaviour.helpers import drain

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
