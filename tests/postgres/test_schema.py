"""A schema of another version is refused in one line."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

import penstock
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.postgres_wire import Call, Row, Wire
from tests.servers.postgres import Postgres


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


def test_nothing_is_prepared_before_its_tables_exist(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PgBouncer remembers the name of a statement that could not be prepared, and ends the connection at the next."""
    run, failed_prepared = Wire.run, list[bool]()

    def noted(wire: Wire, calls: Sequence[Call]) -> list[list[Row]]:
        try:
            return run(wire, calls)
        except psycopg.Error:
            failed_prepared.append(wire.prepares)
            raise

    monkeypatch.setattr(Wire, "run", noted)
    penstock.connect(server.fresh_url()).close()
    assert failed_prepared
    assert not any(failed_prepared)
