"""A database of another schema is left as it is, and refused in one line."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.task import Extra
from penstock.store.mysql.schema import MIGRATIONS
from tests.mysql.conftest import Connection


@pytest.mark.parametrize(
    ("schema", "told"), [(19, "export its tubes"), (MIGRATIONS[-1].number + 1, "upgrade penstock")]
)
def test_another_schema_is_refused(url: str, own: Connection, schema: int, told: str) -> None:
    with penstock.connect(url) as broker:
        broker.tube("t").put("kept")
    cursor = own.cursor()
    cursor.execute(f"UPDATE penstock_meta SET value = '{schema}' WHERE name = 'schema'")
    with pytest.raises(penstock.SchemaMismatch, match=rf"has schema {schema}.*{told}"):
        penstock.connect(url)
    cursor.execute(f"UPDATE penstock_meta SET value = '{MIGRATIONS[-1].number}' WHERE name = 'schema'")
    with penstock.connect(url) as broker:
        assert [task.data for task in broker.tube("t").tasks()] == ["kept"]


def test_there_is_nothing_on_the_server_but_tables(own: Connection) -> None:
    cursor = own.cursor()
    for kind in ("routines WHERE routine_schema", "triggers WHERE trigger_schema", "events WHERE event_schema"):
        cursor.execute(f"SELECT COUNT(*) FROM information_schema.{kind} = DATABASE()")
        assert cursor.fetchall() == ((0,),), kind


def test_tasks_of_the_first_schema_are_kept(url: str, own: Connection) -> None:
    with penstock.connect(url) as broker:
        broker.tube("t").put("x")
        broker.tube("t").put("y", delay=9)
    cursor = own.cursor()
    cursor.execute("UPDATE penstock_task SET lease = 3")
    cursor.execute("ALTER TABLE penstock_task DROP COLUMN extra, ADD COLUMN callback TEXT, ADD COLUMN max_attempts INT")
    cursor.execute("UPDATE penstock_task SET callback = 'http://a/\"b', max_attempts = 5 WHERE state = 'r'")
    for _ in range(2):  # a migration that was cut off is made again
        cursor.execute("UPDATE penstock_meta SET value = '100' WHERE name = 'schema'")
        with penstock.connect(url) as broker:
            assert broker.tube("t").peek(1).lease == 3
            assert broker.tube("t").peek(1)._record.options == Extra(max_attempts=5, callback='http://a/"b')
            assert broker.tube("t").peek(2)._record.extra is None
    with penstock.connect(url) as broker:
        assert [task.lease for task in broker.tube("t").take_many(1)] == [4]
