"""`penstock top` on a terminal: sorting, scrolling, columns, and quitting."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rich.console import Console

import penstock
from penstock.broker.session import SessionInfo
from penstock.cli.top import Row, View
from tests.support.shell import Shell


def row(name: str, ready: int = 0, *, oldest: float = 0.0, paused: bool = False) -> Row:
    tasks = {"ready": ready, "taken": 0, "delayed": 0, "buried": 0}
    return Row(name, "fifottl", paused, tasks, oldest, dict.fromkeys(("put", "take", "ack", "release", "bury"), 0.0))


def drawn(view: View, rows: list[Row], workers: list[SessionInfo] | None = None, height: int = 12) -> list[str]:
    """The lines of a screen of that height."""
    console = Console(width=100, force_terminal=False)
    with console.capture() as captured:
        console.print(view.drawn(rows, workers or [], 100, height))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_sorting() -> None:
    rows, view = [row("a", 1, oldest=9), row("b", 3), row("c", 2, oldest=70)], View()
    assert [each.name for each in view.ordered(rows)] == ["a", "b", "c"]
    view.press("s", 3)
    assert (view.sort, [each.name for each in view.ordered(rows)]) == ("ready", ["b", "c", "a"])
    view.press("r", 3)
    assert [each.name for each in view.ordered(rows)] == ["a", "c", "b"]
    assert [each.name for each in View("oldest").ordered(rows)] == ["c", "a", "b"]
    view.press("S", 3)
    view.press("S", 3)
    assert view.sort == "bury/s"


def test_scrolling_stays_inside() -> None:
    rows, view = [row(f"t{number:02}") for number in range(30)], View()
    first = [line.split()[0] for line in drawn(view, rows)[1:10]]
    assert first == [f"t{number:02}" for number in range(9)]
    assert drawn(view, rows)[-1].startswith("1-9 of 30 tubes by tube")
    for key, expected in (
        ("down", 1),
        ("page down", 10),
        ("end", 21),
        ("down", 21),
        ("up", 20),
        ("home", 0),
        ("up", 0),
    ):
        assert view.press(key, 30)
        assert (drawn(view, rows)[1].split()[0], view.first) == (f"t{expected:02}", expected)
    view.press("end", 30)
    assert drawn(view, rows[:3])[1].startswith("t00")  # the others were dropped


def test_what_is_shown() -> None:
    info = SessionInfo("id", "host", 42, 0.0, [("mail", 1), ("mail", 2)], ["mail", "other"])
    lines = drawn(View(), [row("mail", 5, oldest=5400, paused=True), row("none")], [info])
    assert lines[0].split()[:6] == ["tube", "ready", "taken", "delayed", "buried", "oldest"]
    assert lines[1].split()[:7] == ["mail", "(paused)", "5", "0", "0", "0", "1.5h"]
    assert "worker (1)" in lines[4]
    assert lines[5].split() == ["host:42", "2", "mail", "other"]
    assert len(drawn(View(), [row(f"t{number}") for number in range(99)], [info] * 99)) <= 12


@pytest.mark.parametrize("keys", [b"q", b"s\x1b[B\x1b[6~rq"])
def test_q_quits(shell: Shell, keys: bytes) -> None:
    with penstock.connect(shell.url) as broker:
        broker.tube("mail").put("x")
    master, slave = os.openpty()
    command = [sys.executable, "-m", "penstock", "top", "--interval", "60"]
    environment = {**shell.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        shown = b""
        while b"quit" not in shown:
            shown += os.read(master, 65536)
        os.write(master, keys)
        assert process.wait(30) == 0
    os.close(slave)
    os.close(master)
    assert b"mail" in shown
