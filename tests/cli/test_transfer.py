"""The commands that export, import and move tubes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.store.sql.migrations import load_migrations
from tests.support.shell import Shell
from tests.support.threads import until


def test_export_and_import(shell: Shell) -> None:
    shell("create", "mail", "--ttr", "60")
    shell("put", "mail", '{"to": "ada"}', "--pri", "3", "--delay", "100", "--address", "a 1")
    shell("put", "mail", "hello")
    shell("bury", "mail", "2", "--reason", "no")
    assert shell("export", "mail", "--out", "mail.jsonl") == "exported 2 tasks of mail"
    assert sorted(path.name for path in shell.folder.glob("mail*")) == ["mail.jsonl"]
    done = shell.run("export", "mail")
    assert (done.returncode, done.stderr) == (0, "exported 2 tasks of mail\n")
    assert done.stdout == (shell.folder / "mail.jsonl").read_text()
    assert shell.json("export", "mail", "--out", "again") == {"tube": "mail", "tasks": 2, "file": "again"}
    lines = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [list(line) for line in lines] == [["tube"], ["task"], ["task"], ["end"]]
    assert lines[1]["task"]["data"] == {"to": "ada"}
    assert shell("import", "mail.jsonl", "--tube", "copy") == "imported 2 tasks into copy"
    assert shell.json("import", "-", "--tube", "third", stdin=done.stdout) == {"tube": "third", "tasks": 2}
    assert shell.json("peek", "copy", "2")["reason"] == "no"
    assert shell.json("stats", "copy") == shell.json("stats", "mail")


def test_a_damaged_file_is_one_line_that_names_the_place(shell: Shell) -> None:
    shell("put", "mail", "hello")
    (shell.folder / "cut").write_text(shell.run("export", "mail").stdout[:-30])
    printed = shell.refused("import", "cut", "--tube", "copy")
    assert printed.startswith("cut, line 3: ")
    assert printed.endswith("and the file ends in it: it was cut off")
    assert [tube["name"] for tube in shell.json("tubes")] == ["mail"]


def test_an_import_does_not_change_an_existing_tube(shell: Shell) -> None:
    shell("put", "mail", "hello")
    shell("export", "mail", "--out", "mail.jsonl")
    assert shell.refused("import", "mail.jsonl").startswith("tube mail exists and is not empty: drop it, or import")
    shell("create", "empty")
    assert shell("import", "mail.jsonl", "--tube", "empty") == "imported 1 task into empty"
    shell("create", "other", "fifo")
    assert shell.refused("import", "mail.jsonl", "--tube", "other").startswith("tube other exists with another kind")
    assert shell.refused("import", "mail.jsonl", "--tube", "a b").startswith("tube 'a b' is not a name")
    assert shell.refused("import", "missing.jsonl").startswith("missing.jsonl cannot be read: No such file")
    assert shell.refused("export", "mail", "--out", "no/where").startswith("no/where cannot be written (No such file")
    assert shell.refused("export", "missing").startswith("tube missing does not exist")


def test_move_names_what_it_moved(shell: Shell, tmp_path: Path) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    shell("put", "mail", "hello")
    shell("create", "crawl", "utube")
    assert shell("move", shell.url, new, "--tube", "mail") == f"moved 1 task of mail to {new}"
    assert shell.refused("put", "mail", "late") == f"tube mail has moved to {new}: connect there"
    assert shell.json("move", shell.url, new) == {"to": new, "moved": [{"tube": "crawl", "tasks": 0, "paused": False}]}
    assert shell("move", shell.url, new) == "there is nothing to move"
    assert [tube["name"] for tube in Shell(tmp_path, new).json("tubes")] == ["crawl", "mail"]
    assert Shell(tmp_path, new).json("take", "mail", "--timeout", "0")["data"] == "hello"
    for words, why in {
        (shell.url, shell.url): "both URLs lead to the same store",
        (shell.url, new, "--tube", "nothing"): "tube nothing is not in the source store",
        (shell.url, new, "--wait", "-1"): "wait -1.0 is out of range",
        (shell.url, "nosuch://x"): "store URL 'nosuch://x' has no known scheme",
        (new, "memory://x"): "memory://x exists only in this process",
    }.items():
        assert shell.refused("move", *words).startswith(why)


def test_a_moved_tube_stays_paused_and_the_command_says_so(shell: Shell, tmp_path: Path) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    shell("put", "mail", "hello")
    shell("pause", "mail")
    printed = shell("move", shell.url, new)
    assert printed == f"moved 1 task of mail to {new}; it is still paused: penstock resume ends that"


def test_sigterm_before_the_freeze_leaves_the_tube_unchanged(shell: Shell, tmp_path: Path) -> None:
    with penstock.connect(shell.url) as broker:
        tube = broker.tube("mail")
        tube.put_many(["held", "next"])
        held = tube.take(0)
        assert held is not None
        words = [sys.executable, "-m", "penstock", "move", shell.url, f"sqlite:///{tmp_path}/new.db"]
        with subprocess.Popen(words, env=shell.environment, stderr=subprocess.PIPE) as moving:
            until(lambda: broker.runtime.store.counters(tube.stored).paused, 60)
            moving.send_signal(signal.SIGTERM)
            assert moving.communicate(timeout=60)[1] == b"\n"
        assert moving.returncode == 130
        assert tube.take(0) is not None


def test_a_terminal_shows_the_total(shell: Shell, tmp_path: Path) -> None:
    (shell.folder / "lines").write_text("hello\n" * 1234)
    assert "of 1,234 tasks" in shell.on_terminal("put", "mail", "@lines", "--lines")
    assert "of 1,234 tasks" in shell.on_terminal("export", "mail", "--out", "mail.jsonl")
    assert "of 1,234 tasks" in shell.on_terminal("import", "mail.jsonl", "--tube", "copy")
    assert "of 2,468 tasks" in shell.on_terminal("move", shell.url, f"sqlite:///{tmp_path}/new.db")


MIGRATIONS = [f"{each.number:04d}_{each.name}" for each in load_migrations("penstock.store.sqlite")]


def test_migrate(shell: Shell, tmp_path: Path) -> None:
    looked = shell.run("migrate", "--check", "--json")
    assert looked.returncode == 1
    found = msgspec.json.decode(looked.stdout)
    assert (found["schema"], found["applied"], found["pending"]) == (None, [], MIGRATIONS)
    assert not (tmp_path / "queue.db").exists()
    done = shell("migrate").splitlines()
    assert done[:-1] == [f"applied {name}" for name in MIGRATIONS]
    assert done[-1] == f"the schema is now {found['newest']}; before, it was missing"
    assert shell.json("migrate") == {"schema": found["newest"], "newest": found["newest"], "applied": [], "pending": []}
    assert shell("migrate", "--check") == f"the schema is {found['newest']} and up to date"


@pytest.mark.parametrize("durable_url", ["sqlite", "postgres", "mariadb", "redis", "redis-cluster"], indirect=True)
def test_the_schema_of_every_store_is_reported(durable_url: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, durable_url)
    assert shell.json("migrate")["pending"] == []
    assert "up to date" in shell("migrate", "--check")
    with penstock.connect(durable_url) as broker:
        assert broker.tubes() == []
