"""`penstock worker` as users start it: output, errors, logs, and --reload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.support.forked import run_penstock
from tests.support.peer import environment
from tests.support.threads import until
from tests.support.worker_process import Program

SHOP = """
import penstock

app = penstock.App("sqlite:///{folder}/own.db")
other = "no app"


@app.task(tube="mail")
def send(to: str) -> None:
    if to == "nobody":
        raise ValueError(to)
    app.broker.tube("sent").put("{word} " + to)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program in it."""
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "sent to")
    return tmp_path


def write(folder: Path, word: str) -> None:
    """Write a file in one step: a worker that watches it must not read half of it."""
    (folder / "shop").write_text(SHOP.format(folder=folder, word=word))
    (folder / "shop").rename(folder / "shop.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_penstock("worker", *arguments, stdin=b"", cwd=Path.cwd(), env=environment(), timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:app"], "penstock: module 'nowhere' was not found"),
        (["shop.py:app"], "give shop:app"),
        (["shop:shop"], "penstock: shop has no App named shop: give shop:app"),
        (["shop:other"], "penstock: shop has no App named other: give shop:app"),
        ([":app"], "names no module"),
        (["shop:app", "--limit", "5"], "penstock: limit '5' is not P=N"),
        (["shop:app", "--limit", "0=1", "--limit", "5=2"], "limit 5=2 is larger than 0=1"),
        (["shop:app", "--limit", "5=2", "--limit", "5=3"], "penstock: limit '5=3' repeats 5=2"),
        (["shop:app", "--concurrency", "0"], "penstock: concurrency 0 is out of range"),
        (["shop:app", "--processes", "-1"], "penstock: processes -1 is out of range"),
        (["shop:app", "--processes", "0"], "penstock: processes 0 is out of range"),
        (["shop:app", "--tubes", ""], "penstock: tube is empty"),
        (["shop:app", "--grace", "nan"], "penstock: grace nan is out of range"),
        (["shop:app", "--tubes", "a b"], "penstock: tube 'a b' is not a name"),
        (["shop:app", "--url", "gopher://x"], "penstock: "),
        (["shop:app", "--listen", "9000"], "penstock: --listen '9000' is not an address"),
        (["shop:app", "--listen", "0.0.0.0:0"], "can be reached from other hosts without a token"),
        (["shop:app", "--token-file", "tokens"], "penstock: --token-file protects /metrics: give --listen as well"),
        (["shop:app", "--max-tasks", "0"], "penstock: max_tasks 0 is out of range"),
        ([], "penstock: the worker has no tubes: give an app that has tasks (module:app), --tubes or --callbacks"),
    ],
)
def test_an_impossible_request_is_one_clear_line(folder: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("int('x')", "ValueError: invalid literal for int() with base 10: 'x'"),
        ("import penstock; penstock.Backoff(base=-1)", "BadValue: "),
    ],
)
def test_an_error_in_the_program_itself_is_shown_whole(folder: Path, line: str, error: str) -> None:
    (folder / "broken.py").write_text(f"{line}\n")
    done = run("broken:app")
    first, *_, last = done.stderr.splitlines()
    assert (done.returncode, first) == (1, "Traceback (most recent call last):")
    assert f'broken.py", line 1, in <module>\n    {line}' in done.stderr
    assert f"\n{error}" in done.stderr.replace("penstock.errors.", "")
    assert last.startswith(f"penstock: module 'broken' cannot be imported: {error}")


def test_a_size_and_a_warning_of_a_tube_that_nobody_uses(folder: Path) -> None:
    assert "'1T' is not a size: give bytes, or a number with K, M or G" in run("shop:app", "--max-memory", "1T").stderr
    with Program(f"sqlite:///{folder}/own.db", "--tubes", "mail,mial", target="shop:app") as worker:
        worker.await_log("worker on")
        assert worker.stop() == 0
    assert "tube mial is new, and no handler here uses it; check the name in --tubes" in worker.log
    assert "tube mail" not in worker.log


@pytest.mark.parametrize("how", ["own", "option", "environment"])
def test_the_store_is_the_option_s_or_the_environment_s_or_the_app_s(folder: Path, how: str) -> None:
    url = f"sqlite:///{folder}/{how}.db"
    with penstock.connect(url) as broker:
        broker.tube("mail").put({"task": "send", "args": {"to": "ada"}})
        words = ["worker", "shop:app", "--json", "--json-logs", *(["--url", url] if how == "option" else [])]
        more = {"PENSTOCK_URL": url} if how == "environment" else {}
        command = [sys.executable, "-m", "penstock", *words]
        worker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment(), **more}
        )
        task = broker.tube("sent").take(60)
        worker.send_signal(signal.SIGTERM)
        output, log = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert task is not None
    assert task.data == "sent to ada"
    lines = [json.loads(line) for line in log.splitlines()]
    assert lines[0]["message"] == f"worker on {folder}/{how}.db, tubes mail, concurrency 16"
    counts = [line["counts"] for line in lines if "counts" in line][-1]
    assert counts.pop("taken") - counts.pop("released") == 1  # a busy worker releases what it has not started
    others = ("running", "waiting", "failed", "retried", "buried", "dropped", "lost", "stuck")
    assert counts == {"done": 1, **dict.fromkeys(others, 0)}
    working, stopped = map(json.loads, output.splitlines())
    assert working == {"event": "working", "store": f"{folder}/{how}.db", "tubes": ["mail"], "concurrency": 16}
    assert (stopped["event"], stopped["counts"]["done"]) == ("stopped", 1)


def test_json_logs_name_the_task_that_failed(folder: Path) -> None:
    url = f"sqlite:///{folder}/own.db"
    with penstock.connect(url) as broker:
        broker.tube("mail").put({"task": "send", "args": {"to": "nobody"}}, max_attempts=1)
        with Program(url, "--json-logs", target="shop:app") as worker:
            worker.await_log("failed in attempt 1")
            until(lambda: broker.tube("mail").stats().tasks.buried == 1)
            assert worker.stop() == 0
    [line] = [found for found in map(json.loads, worker.lines) if "failed in attempt" in found["message"]]
    assert {name: line[name] for name in ("level", "tube", "id", "attempt", "task")} == {
        "level": "warning", "tube": "mail", "id": 1, "attempt": 1, "task": "send",
    }  # fmt: skip
    first, *_, last = line["error"].splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "ValueError: nobody")
    assert "penstock/worker" not in line["error"]  # the traceback begins in the handler


def test_a_changed_file_restarts_the_worker(folder: Path) -> None:
    url = f"sqlite:///{folder}/own.db"
    with penstock.connect(url) as broker, Program(url, "--reload", target="shop:app") as worker:
        mail, sent = broker.tube("mail"), broker.tube("sent")
        mail.put({"task": "send", "args": {"to": "ada"}})
        first = sent.take(60)
        write(folder, "written to")
        until(lambda: worker.log.count("worker on") == 2)
        mail.put({"task": "send", "args": {"to": "bob"}})
        second = sent.take(60)
        assert worker.stop() == 0
    assert first is not None
    assert second is not None
    assert (first.data, second.data) == ("sent to ada", "written to bob")


def test_a_terminal_shows_a_banner_and_a_live_line(folder: Path) -> None:
    master, slave = os.openpty()
    command = [sys.executable, "-m", "penstock", "worker", "shop:app"]
    worker = subprocess.Popen(command, stdout=slave, stderr=slave, env={**environment(), "TERM": "xterm"})
    os.close(slave)
    shown = b""
    while b"running" not in shown:
        shown += os.read(master, 65536)
    worker.send_signal(signal.SIGINT)
    try:
        while more := os.read(master, 65536):
            shown += more
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert worker.wait(60) == 0
    text = shown.decode()
    assert all(word in text for word in ("penstock worker", "store", "mail", "send", "Ctrl-C", "working", "stopped"))
