"""Schemas of other versions: brought up to date, or told of in one line."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.core.task import Extra, record_of
from penstock.store.postgres.location import locate
from tests.servers.postgres import Postgres

# The columns of penstock_task as the first schema has them.
_BEFORE = """SET search_path = {schema};
ALTER TABLE penstock_task ALTER COLUMN lease DROP NOT NULL, ALTER COLUMN lease DROP DEFAULT;
ALTER TABLE penstock_task RENAME COLUMN lease TO call;
ALTER TABLE penstock_task ADD COLUMN lease integer NOT NULL DEFAULT 3;
UPDATE penstock_task SET call = NULL;
ALTER TABLE penstock_task DROP COLUMN errors;
ALTER TABLE penstock_outcome DROP COLUMN errors;
ALTER TABLE penstock_task RENAME COLUMN extra TO callback;
ALTER TABLE penstock_task ADD COLUMN max_attempts integer;
UPDATE penstock_task SET callback = 'http://a/"b', max_attempts = 5 WHERE state = 'r';
DROP INDEX penstock_named_group;
ALTER TABLE penstock_group DROP COLUMN failed, DROP COLUMN on_failure;
UPDATE penstock_meta SET value = '100' WHERE name = 'schema';"""


def test_tasks_of_the_first_schema_are_kept(server: Postgres) -> None:
    url = server.fresh_url()
    with penstock.connect(url) as broker:
        broker.tube("t").put("x")
        broker.tube("t").put("y", delay=9)
        broker.tube("u", temporary=True).put("y")
    with psycopg.connect(locate(url).conninfo) as db:
        db.execute(_BEFORE.format(schema=locate(url).quoted).encode())
    with penstock.connect(url) as broker:
        for name in ("t", "u"):
            assert broker.tube(name).peek(1).lease == 3
            assert record_of(broker.tube(name).peek(1)).options == Extra(max_attempts=5, callback='http://a/"b')
            assert [task.lease for task in broker.tube(name).take_many(1)] == [4]
        assert broker.tube("t").put("z").lease == 0
        assert record_of(broker.tube("t").peek(2)).extra is None
        assert broker.check() == []


def test_a_process_that_runs_while_another_migrates_says_what_to_do(server: Postgres) -> None:
    url = server.fresh_url()
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        tube.put("x")
        for task in tube.take_many(1):  # prepares statements
            task.release()
        with psycopg.connect(locate(url).conninfo) as db:
            db.execute(f"ALTER TABLE {locate(url).quoted}.penstock_task RENAME COLUMN lease TO other".encode())
        for call in (tube.take_many, lambda _: tube.tasks()):
            with pytest.raises(penstock.SchemaMismatch, match="upgrade penstock and restart"):
                call(1)
