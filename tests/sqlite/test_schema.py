"""A file with the schema of another penstock version is refused in one line and not changed."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sqlite.sqlite_store import MIGRATIONS
from tests.support.shell import Shell

# What marks the schema in a file of a penstock before the engine, and a table that this version would create.
_BEFORE_THE_ENGINE = """
PRAGMA journal_mode = WAL;
CREATE TABLE penstock_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO penstock_meta VALUES ('schema', '4'), ('id', 'da10be75-8c83-4339-840a-dedd4bab7577');
CREATE TABLE penstock_task (key INTEGER PRIMARY KEY, tube INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
INSERT INTO penstock_task VALUES (1099511627777, 1, X'226F6C6422');
"""


def fill(path: Path, statements: str) -> bytes:
    db = apsw.Connection(str(path))
    db.execute(statements).fetchall()
    db.close()
    return path.read_bytes()


def must_refuse(path: Path, message: str, content: bytes) -> None:
    """Assert that opening it, or reading its schema, is refused, changes no byte and creates no other file."""
    for url in (f"sqlite:///{path}", f"sqlite:///{path}?durability=relaxed"):
        with pytest.raises(penstock.SchemaMismatch) as refused:
            penstock.connect(url)
        assert str(refused.value) == message
    for words in (["migrate"], ["migrate", "--check"], ["doctor"]):
        done = Shell(path.parent, f"sqlite:///{path}").run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"penstock: {message}\n")
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_schema_of_before_the_engine_is_refused(path: Path) -> None:
    content = fill(path, _BEFORE_THE_ENGINE)
    message = (
        f"{path} has schema 4, this penstock reads 105 and later: export its tubes with the penstock that made it and "
        "import them here, or use a new file"
    )
    must_refuse(path, message, content)


def test_a_newer_schema_is_refused(path: Path) -> None:
    penstock.connect(f"sqlite:///{path}").close()
    newest = MIGRATIONS[-1].number
    content = fill(path, f"UPDATE penstock_meta SET value = '{newest + 1}' WHERE name = 'schema'")
    message = f"{path} has schema {newest + 1}, this penstock knows up to {newest}: upgrade penstock"
    must_refuse(path, message, content)


def test_the_schema_number_is_where_older_versions_look_for_it(path: Path) -> None:
    """They know up to schema 4, so they refuse this version as the test above expects."""
    penstock.connect(f"sqlite:///{path}").close()
    db = apsw.Connection(str(path))
    assert db.execute("SELECT value FROM penstock_meta WHERE name = 'schema'").get == "105"
    db.close()


def test_a_file_is_opened_again_with_everything_in_it(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        broker.tube("t").put("kept")
        before = broker.runtime.store.identity
    with penstock.connect(f"sqlite:///{path}") as broker:
        assert broker.runtime.store.identity == before
        assert [task.data for task in broker.tube("t").tasks()] == ["kept"]
