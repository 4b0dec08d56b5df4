"""The commands that list and show, for people and as JSON."""

from __future__ import annotations

import click
import msgspec
import pytest

import penstock
from penstock.cli.bench import bench
from penstock.cli.top import top
from penstock.server.http.responses import TaskAnswer
from penstock.testing import run_queued
from tests.support.shell import Shell


@pytest.fixture
def filled(shell: Shell) -> Shell:
    with penstock.connect(shell.url) as broker:
        mail = broker.create_tube("mail", ttr=60)
        mail.put_many(["a", {"b": 1}, b"\0\1"])
        mail.put("later", delay=3600)
        mail.bury(1, "odd\x1b[31m")
        broker.create_tube("feeds", "round", period=60).put("x", id="feed-1")
    return shell


def test_tubes(filled: Shell) -> None:
    feeds, mail = filled.json("tubes")
    assert (feeds["name"], feeds["kind"], feeds["options"]) == ("feeds", "round", {"period": 60})
    assert mail["tasks"] == {"ready": 2, "taken": 0, "delayed": 1, "buried": 1, "done": 0, "total": 4}
    assert filled("tubes").splitlines() == [
        "tube   kind     ready  taken  delayed  buried  done",
        "feeds  round        1      0        0       0     0",
        "mail   fifottl      2      0        1       1     0",
    ]


def test_tasks(filled: Shell) -> None:
    assert [task["id"] for task in filled.json("tasks", "mail")] == [1, 2, 3, 4]
    assert [task["id"] for task in filled.json("tasks", "mail", "--status", "ready")] == [2, 3]
    assert [task["id"] for task in filled.json("tasks", "mail", "--limit", "1", "--after", "2")] == [3]
    assert filled("tasks", "mail").splitlines() == [
        "id  status   pri  attempts  data",
        " 1  buried     0         0  a",
        ' 2  ready      0         0  {"b":1}',
        " 3  ready      0         0  2 bytes",
        " 4  delayed    0         0  later",
    ]
    for status in ("gone", "done"):
        refused = f"status '{status}' is unknown: use one of ready, taken, buried, delayed"
        assert filled.refused("tasks", "mail", "--status", status) == refused
    assert filled.refused("tasks", "mail", "--limit", "0").startswith("limit 0")


def test_output_has_no_terminal_control_characters(filled: Shell) -> None:
    assert "reason    odd\\x1b[31m" in filled("peek", "mail", "1")


def test_a_task_looks_as_it_does_in_the_http_api(filled: Shell) -> None:
    fields = set(TaskAnswer.__struct_fields__) - {"base64", "session"}
    assert set(filled.json("peek", "mail", "2")) == fields
    assert set(filled.json("take", "mail", "--timeout", "0")) == fields - {"errors"} | {"session"}


def test_ids_are_those_of_the_kind(filled: Shell) -> None:
    assert filled.json("peek", "feeds", "feed-1")["id"] == "feed-1"
    assert "is not in tube feeds" in filled.refused("peek", "feeds", "1")
    assert filled.refused("peek", "mail", "feed-1").startswith("task id 'feed-1' is a str")
    assert "too large" in filled.refused("peek", "mail", "9" * 5000)
    assert filled.refused("peek", "mail", "--", "--5").startswith("task id '--5' is a str")
    assert filled.refused("peek", "mail", "--", "-5").startswith("task -5 is not in tube mail")


def test_why(filled: Shell) -> None:
    assert filled("why", "mail", "1").startswith("task 1 is buried (odd")
    assert filled.json("why", "mail", "2")["why"].startswith("task 2 is ready: no task is ahead of it")


def test_stats(filled: Shell) -> None:
    calls = filled.json("stats", "mail")["calls"]
    assert (calls["put"], calls["bury"], calls["take"]) == (4, 1, 0)
    assert "  buried             1" in filled("stats", "mail")


def test_sessions(filled: Shell) -> None:
    assert filled.json("sessions") == []
    with penstock.connect(filled.url) as broker, broker.session() as session:
        assert session.tube("mail").take(0)
        (found,) = filled.json("sessions")
        assert (found["id"], found["held"]) == (session.id, [["mail", 2]])
        assert f"{session.id}  " in filled("sessions")


def test_top_shows_rates(filled: Shell) -> None:
    lines = filled("top", "--interval", "0.1", "--updates", "2", "--json").splitlines()
    views = [msgspec.json.decode(line) for line in lines]
    assert [row["name"] for row in views[1]] == ["feeds", "mail"]
    assert views[1][1]["tasks"] == {"ready": 2, "taken": 0, "delayed": 1, "buried": 1}
    assert views[1][1]["per_second"]["put"] == 0
    assert (views[1][1]["paused"], views[1][1]["oldest_ready"] > 0) == (False, True)
    filled.environment["COLUMNS"] = "60"
    assert filled("top", "--updates", "1").splitlines()[0].split() == [
        "tube", "ready", "taken", "delayed", "buried", "oldest", "put/s", "take/s",
    ]  # fmt: skip


def test_check_finds_nothing_wrong(filled: Shell) -> None:
    assert filled.json("check") == {"findings": [], "left": []}
    assert filled("check", "--repair") == "no problems found"


def test_groups(filled: Shell) -> None:
    with penstock.connect(filled.url) as broker:
        group = broker.tube("mail").group("batch")
        group.put_many(["x", "y"])
        group.start()
        broker.tube("mail").delete(5)
    assert filled.json("groups", "mail") == [{"name": "batch", "state": "started", "done": 1, "total": 2}]
    assert filled("groups", "mail").splitlines()[1] == "batch  started     1      2"


def test_empty_pages_say_so(shell: Shell) -> None:
    shell("migrate")
    done = shell.run("sessions")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no sessions\n")
    assert shell.json("sessions") == []


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "x"])
@pytest.mark.parametrize(("command", "option"), [(top, "--interval"), (bench, "--seconds")])
def test_seconds_that_are_none(command: click.Command, option: str, seconds: str) -> None:
    with pytest.raises(click.BadParameter, match=seconds):
        command.make_context(command.name, [option, seconds])


def test_peek_shows_the_attempts_that_failed(shell: Shell) -> None:
    app = penstock.App(shell.url)

    @app.task(tube="mail", max_attempts=1)
    def send(to: str) -> None:
        raise ValueError(f"no mailbox {to}")

    send.put("ada")
    run_queued(app, raises=False)
    app.close()
    (error,) = shell.json("peek", "mail", "1")["errors"]
    assert (error["attempt"], error["error"]) == (1, "ValueError: no mailbox ada")
    assert 'raise ValueError(f"no mailbox {to}")' in error["traceback"]
    shown = shell("peek", "mail", "1").splitlines()
    assert any(line.startswith("attempt 1 failed at ") and line.endswith("no mailbox ada") for line in shown)
    assert "  ValueError: no mailbox ada" in shown
