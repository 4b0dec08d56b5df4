"""A task that goes through commands sharing a session, on a file and on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.conftest import STORES
from tests.support.shell import Shell


@pytest.fixture(params=["sqlite", "redis"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, STORES[request.param](tmp_path))


def test_take_holds_a_task_and_ack_continues_its_session(shell: Shell) -> None:
    assert shell("put", "mail", '{"to": "ada"}') == "1"
    task = shell.json("take", "mail", "--timeout", "5")
    assert (task["id"], task["status"], task["data"], task["attempts"]) == (1, "t", {"to": "ada"}, 1)
    assert shell.json("peek", "mail", "1")["status"] == "t"
    assert shell.json("take", "mail", "--timeout", "0") is None
    assert "--session ID" in shell.refused("ack", "mail", "1")
    assert shell.json("ack", "mail", "1", "--session", task["session"]) == {"tube": "mail", "id": 1, "verb": "ack"}
    assert "is not held by this session" in shell.refused("ack", "mail", "1", "--session", task["session"])
    assert shell.json("stats", "mail")["tasks"] == {
        "ready": 0, "taken": 0, "delayed": 0, "buried": 0, "done": 1, "total": 0,
    }  # fmt: skip


def test_every_verb_of_a_holder(shell: Shell) -> None:
    shell("create", "mail", "--ttr", "50")
    shell("put", "mail", "x")
    task = shell.json("take", "mail", "--timeout", "0")
    shell.environment["PENSTOCK_SESSION"] = task["session"]
    assert shell("touch", "mail", "1", "30") == "touched 1 of mail"
    assert shell.json("peek", "mail", "1")["due"] == pytest.approx(task["taken"] + 80)
    assert shell("release", "mail", "1", "--delay", "60") == "released 1 of mail"
    assert shell.json("peek", "mail", "1")["status"] == "~"
    shell("put", "mail", "y")
    shell.environment["PENSTOCK_SESSION"] = shell.json("take", "mail", "--timeout", "0")["session"]
    assert shell("fail", "mail", "2", "no such user", "--code", "550") == "failed 2 of mail"
    assert shell.json("stats", "mail")["calls"]["fail"] == 1


def test_a_task_becomes_ready_when_its_hold_ends(shell: Shell) -> None:
    shell("put", "mail", "x")
    shell("take", "mail", "--timeout", "0", "--hold", "0.2")
    again = shell.json("take", "mail", "--timeout", "60")
    assert (again["id"], again["attempts"]) == (1, 2)
    assert shell("ack", "mail", "1", "--session", again["session"]) == "acked 1 of mail"


def test_an_unknown_session_is_refused(shell: Shell) -> None:
    shell("put", "mail", "x")
    assert "session" in shell.refused("ack", "mail", "1", "--session", "0a645cf9-87f6-4261-a872-a931cd363b5c")


def test_an_empty_take_can_have_its_own_exit_code(shell: Shell) -> None:
    shell("create", "urgent")
    shell("put", "mail", "x")
    assert shell.json("take", "urgent", "mail", "--timeout", "0")["tube"] == "mail"
    assert shell("take", "urgent", "mail", "--timeout", "0") == ""
    assert shell.on_terminal("take", "urgent", "--timeout", "0") == "nothing came\r\n"
    assert shell.run("take", "urgent", "--timeout", "0", "--exit-code").returncode == 3
    assert shell.refused("take", "nowhere", "--timeout", "0").startswith("tube nowhere does not exist: penstock tubes")
    # Of these takes, only the one that got a task has left a session.
    assert [session["held"] for session in shell.json("sessions")] == [[["mail", 1]]]


def test_bury_kick_delete_and_release_all(shell: Shell) -> None:
    shell("put", "mail", "-", "--lines", stdin="a\nb\nc\n")
    assert shell("bury", "mail", "1", "--reason", "odd") == "buried 1 of mail"
    assert shell.json("peek", "mail", "1")["reason"] == "odd"
    assert shell.json("kick", "mail", "9") == {"tube": "mail", "verb": "kick", "count": 1}
    assert shell("delete", "mail", "2") == "deleted 2 of mail"
    assert "task 1 of tube mail is not buried" in shell.refused("kick", "mail", "--id", "1")
    shell("bury", "mail", "1")
    assert shell.json("kick", "mail", "--id", "1") == {"tube": "mail", "id": 1, "verb": "kick"}
    assert "give one of them" in shell.refused("kick", "mail", "3", "--id", "1")
    shell("take", "mail", "--timeout", "0")
    assert shell("release", "mail", "--all") == "released 1 task of mail"
    with penstock.connect(shell.url) as broker:
        assert [(task.id, task.status.value) for task in broker.tube("mail").tasks()] == [(1, "r"), (3, "r")]
    assert "give one of them" in shell.refused("release", "mail")
    assert "task 77 is not in tube mail" in shell.refused("delete", "mail", "77")


def test_retry_makes_buried_and_taken_tasks_ready(shell: Shell) -> None:
    shell("put", "mail", "x")
    with penstock.connect(shell.url) as broker:
        task = broker.tube("mail").take(0)
        assert task is not None
        assert shell("retry", "mail", "1") == "retried 1 of mail"
        with pytest.raises(penstock.NotTaken):
            task.ack()
        broker.tube("mail").bury(1)
        assert shell.json("retry", "mail", "1") == {"tube": "mail", "id": 1, "verb": "retry"}
        assert broker.tube("mail").peek(1).status is penstock.Status.READY
        broker.create_tube("feeds", "round", period=1).put("x", id="a")
    assert "is already ready" in shell.refused("retry", "mail", "1")
    assert shell.refused("retry", "feeds", "a").startswith("kind round has no kick")


def test_cancel_ends_a_task_by_its_id_or_address(shell: Shell) -> None:
    shell("put", "mail", "x", "--address", "first")
    shell("put", "mail", "y", "--address", "second")
    assert shell.json("cancel", "mail", "1", "--reason", "too late") == {"tube": "mail", "id": 1, "verb": "cancel"}
    assert shell("cancel", "mail", "--address", "second") == "cancelled 2 of mail"
    assert shell.run("wait", "mail", "first", "--timeout", "0").stdout.split()[1:] == [
        "cancelled",
        "error",
        "too",
        "late",
    ]
    assert "task 1 is not in tube mail" in shell.refused("cancel", "mail", "1")
    assert "task of address second is not in tube mail" in shell.refused("cancel", "mail", "--address", "second")
    assert "give either the ID" in shell.refused("cancel", "mail")


def test_commands_that_anyone_may_use_accept_an_address(shell: Shell) -> None:
    shell("put", "mail", "x", "--address", "first")
    assert shell.json("peek", "mail", "--address", "first")["id"] == 1
    assert shell.json("why", "mail", "--address", "first") == shell.json("why", "mail", "1")
    assert shell("delete", "mail", "--address", "first") == "deleted 1 of mail"
    for verb in ("peek", "why", "delete"):
        assert "task of address first is not in tube mail" in shell.refused(verb, "mail", "--address", "first")
        assert "give either the ID" in shell.refused(verb, "mail", "1", "--address", "first")


def test_a_lease_alone_is_enough(shell: Shell) -> None:
    shell("put", "mail", "x")
    taken = shell.json("take", "mail", "--timeout", "0")
    assert "is not held" in shell.refused("ack", "mail", "1", "--lease", "1")
    assert shell("touch", "mail", "1", "5", "--lease", taken["lease"]) == "touched 1 of mail"
    assert shell("ack", "mail", "1", "--lease", taken["lease"]) == "acked 1 of mail"
    late = shell.refused("ack", "mail", "1", "--lease", taken["lease"])
    assert "is not held" in late
    assert "--session" not in late  # the lease names the session


def test_a_lease_narrows_a_settle_to_one_hand_out(shell: Shell) -> None:
    shell("put", "mail", "x")
    first = shell.json("take", "mail", "--timeout", "0")
    assert isinstance(first["lease"], str)
    shell("release", "mail", "1", "--session", first["session"], "--lease", first["lease"])
    again = shell.json("take", "mail", "--timeout", "0")
    assert again["lease"] != first["lease"]
    for lease in (first["lease"], "nonsense"):
        held = ("mail", "1", "--session", again["session"], "--lease", lease)
        assert "is not held" in shell.refused("ack", *held)
    assert shell("ack", "mail", "1", "--session", again["session"], "--lease", again["lease"]) == "acked 1 of mail"
