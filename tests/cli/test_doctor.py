"""`penstock doctor`, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli.doctor import doctor
from penstock.store.sqlite.sqlite_store import MIGRATIONS
from tests.conftest import STORES
from tests.servers.redis import Redis


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from penstock.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.connect(url) as broker:
        tube = broker.tube("mail")
        tube.put_many(["a", "b", "c"])
        tube.put("later", delay=60)
        tube.bury(1)
    return url


def test_doctor_prints_the_store_and_its_backlog_as_json(url: str) -> None:
    done = run("--url", url, "doctor", "--json")
    report = msgspec.json.decode(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["store"]["store"] == "SQLite"
    assert "survives a power cut" in report["store"]["durability"]
    assert report["store"]["schema"] == MIGRATIONS[-1].number
    assert report["tubes"] == [{"name": "mail", "kind": "fifottl", "ready": 2, "taken": 0, "delayed": 1, "buried": 1}]


def test_the_promise_is_that_of_the_settings(url: str) -> None:
    report = msgspec.json.decode(run("--url", f"{url}?durability=relaxed", "doctor", "--json").stdout)
    assert "a power cut may lose the last moments" in report["store"]["durability"]


def test_doctor_shows_a_table_to_people(url: str) -> None:
    done = run("--url", url, "doctor")
    assert done.returncode == 0
    assert "nothing to fix" in done.stdout
    assert "mail" in done.stdout


def test_a_missing_store_is_one_line_on_stderr() -> None:
    done = run("--url", "sqlite:////nowhere/at/all.db", "doctor")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: there is no store at /nowhere/at/all.db: give another --url")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("store", STORES)
def test_doctor_reports_on_every_store(store: str, tmp_path: Path) -> None:
    url = STORES[store](tmp_path)
    with penstock.connect(url) as broker:  # kept open: a memory store ends with its last broker
        broker.tube("mail").put("a", delay=60)
        done = CliRunner().invoke(doctor, ["--json"], obj=url)
        report = msgspec.json.decode(done.stdout)
    advice = report["store"]["advice"]
    assert done.exit_code == bool(advice)
    assert [line for line in advice if not line.startswith("fsync")] == []  # off in the tests' PostgreSQL
    assert report["tubes"] == [{"name": "mail", "kind": "fifottl", "ready": 0, "taken": 0, "delayed": 1, "buried": 0}]
    assert "" not in (report["store"]["store"], report["store"]["durability"])


def test_a_problem_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Redis()
    try:
        penstock.connect(server.url).close()
        server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        done = CliRunner().invoke(doctor, obj=server.url)
    finally:
        server.stop()
    assert done.exit_code == 1
    assert "fix: maxmemory-policy is allkeys-lru" in done.stdout
    assert caplog.text == ""


def test_an_unknown_command_names_the_nearest() -> None:
    done = run("doctr")
    assert done.returncode == 2
    assert "doctor" in done.stderr
