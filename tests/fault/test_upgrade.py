"""Rolling upgrades: an older penstock works alongside a newer one that opens or migrates its store, or refuses it.

A refusal is one clear line, and never reports the store as corrupt. Runs the sources of an older commit, so it needs
the repository's history.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pytest

import penstock
from bench.against import extract
from tests.fault import older_version
from tests.fault.killed_program import database
from tests.servers import running as server
from tests.servers.vaults import bare_url

#: The newest commit before the one engine, whose stores this penstock does not read.
OLDER = "2ba336e"
SERVERS = ("sqlite", "postgres", "mariadb", "redis")


class Older:
    """A process that runs an older penstock."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def work(self, data: str) -> str:
        """Put a task, take it and ack it. Returns `done` or the error."""
        pipes: tuple[IO[str] | None, IO[str] | None] = self._process.stdin, self._process.stdout
        assert pipes[0] is not None
        assert pipes[1] is not None
        print(data, file=pipes[0], flush=True)
        return pipes[1].readline().strip()


@contextmanager
def running(url: str) -> Iterator[Older]:
    source = _sources()
    command = [sys.executable, older_version.__file__, url]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": str(source)}
    ) as process:
        yield Older(process)


def _sources() -> Path:
    try:
        return extract(OLDER).source
    except ValueError as error:
        pytest.fail(f"the history of the repository is needed (git fetch --unshallow): {error}")


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store."""
    return f"sqlite:///{tmp_path}/queue.db" if request.param == "sqlite" else bare_url(server(request.param))


def is_clear(message: str) -> bool:
    """Whether it is one line that names the schema and the remedy."""
    return message.startswith("SchemaMismatch: ") and "upgrade penstock" in message and "\\n" not in message


def test_an_older_process_continues_if_a_newer_one_cannot_read_its_store(url: str) -> None:
    with running(url) as before:
        assert before.work("a") == "done"
        with pytest.raises(penstock.SchemaMismatch, match=r"reads \d+ and later: export its tubes") as refused:
            penstock.connect(url)
        assert "\n" not in str(refused.value)
        assert before.work("b") == "done"


def test_an_older_process_that_starts_later_gets_a_one_line_error(url: str) -> None:
    with penstock.connect(url) as broker:
        broker.tube("jobs", kind="fifottl").put("kept")
        with running(url) as later:
            assert is_clear(later.work("a"))
        assert broker.check() == []
        assert len(broker.tube("jobs")) == 1


# Changes that a newer penstock may make to the tables of this one.
MIGRATION = ("ALTER TABLE penstock_task RENAME COLUMN rank1 TO first_rank", "UPDATE penstock_meta SET value = '9999'")


@pytest.mark.parametrize("url", [name for name in SERVERS if name != "redis"], indirect=True)
def test_this_version_meets_a_migration_of_a_newer_one(url: str) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("jobs")
        tube.put("a")
        with closing(database(url)) as db:
            for statement in MIGRATION:
                db.cursor().execute(f"{statement} WHERE name = 'schema'" if "meta" in statement else statement)
        for verb in (partial(tube.put, "b", pri=1), partial(tube.take, 0), partial(tube.tasks)):
            with pytest.raises(penstock.SchemaMismatch) as raised:
                verb()
            assert is_clear(f"SchemaMismatch: {raised.value}")
        with pytest.raises(penstock.SchemaMismatch, match="has schema 9999.*upgrade penstock"):
            penstock.connect(url)
