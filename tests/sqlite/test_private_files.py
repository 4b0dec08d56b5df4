"""Store files are readable only by their owner, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.support.shell import Shell


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    former = os.umask(0)
    yield
    os.umask(former)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.rglob("*") if file.is_file()}


def test_the_database_its_log_and_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    with penstock.connect(f"sqlite:///{tmp_path}/jobs.db") as broker:
        broker.tube("mail").put("secret")
        broker.tube("mail").take(0)
        found = modes(tmp_path)
    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm"} < found.keys()
    assert {name: oct(mode) for name, mode in found.items() if mode != 0o600} == {}


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch(0o640)
    with penstock.connect(f"sqlite:///{tmp_path}/jobs.db") as broker:
        broker.tube("mail").put("shared")
        assert modes(tmp_path) == dict.fromkeys(("jobs.db", "jobs.db-wal", "jobs.db-shm"), 0o640)


def test_an_export(tmp_path: Path) -> None:
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    shell("put", "mail", "secret")
    shell("export", "mail", "--out", "mail.jsonl")
    assert modes(tmp_path)["mail.jsonl"] == 0o600
