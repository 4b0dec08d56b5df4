"""A store of the last schema is brought up to date when it is opened."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.store.postgres import schema
from penstock.store.postgres.location import locate
from tests.behaviour.helpers import drain


def test_a_store_of_the_last_schema_is_migrated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location, newest = locate(url), schema.MIGRATIONS[-1]
    with monkeypatch.context() as patched, psycopg.connect(location.conninfo, autocommit=True) as db:
        patched.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
        schema.migrate(db, location)
    assert schema.look(url).pending == [f"{newest.number:04d}_{newest.name}"]
    with penstock.connect(url) as broker:
        assert broker._hub.store.describe().schema == newest.number
        broker.tube("work").put_many(["a", "b"])
        assert drain(broker.tube("work")) == ["a", "b"]
        assert broker.check() == []
