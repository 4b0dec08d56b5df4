"""A database with another schema is refused in one line and not changed."""

from __future__ import annotations

import pytest

import penstock
from penstock.store.mysql.mysql_store import MIGRATIONS
from tests.mysql.conftest import Connection


@pytest.mark.parametrize(
    ("schema", "message"),
    [(18, "export its tubes"), (104, "export its tubes"), (MIGRATIONS[-1].number + 1, "upgrade penstock")],
)
def test_another_schema_is_refused(url: str, own: Connection, schema: int, message: str) -> None:
    with penstock.connect(url) as broker:
        broker.tube("t").put("kept")
    cursor = own.cursor()
    cursor.execute(f"UPDATE penstock_meta SET value = '{schema}' WHERE name = 'schema'")
    with pytest.raises(penstock.SchemaMismatch, match=rf"has schema {schema}.*{message}"):
        penstock.connect(url)
    cursor.execute(f"UPDATE penstock_meta SET value = '{MIGRATIONS[-1].number}' WHERE name = 'schema'")
    with penstock.connect(url) as broker:
        assert [task.data for task in broker.tube("t").tasks()] == ["kept"]


def test_there_is_nothing_on_the_server_but_tables(own: Connection) -> None:
    cursor = own.cursor()
    for kind in ("routines WHERE routine_schema", "triggers WHERE trigger_schema", "events WHERE event_schema"):
        cursor.execute(f"SELECT COUNT(*) FROM information_schema.{kind} = DATABASE()")
        assert cursor.fetchall() == ((0,),), kind
