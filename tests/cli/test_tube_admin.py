"""The commands that create, pause and empty tubes, and those for groups and schedules."""

from __future__ import annotations

import threading

import penstock
from penstock.app.schedules import declared
from penstock.schedule import schedule_status
from tests.support.shell import Shell


def test_create_with_options(shell: Shell) -> None:
    assert shell("create", "mail", "--ttr", "60", "--backoff", "1,3,60,0") == "created mail of kind fifottl"
    made = shell.json("create", "crawl", "utubettl", "--fair", "--utube-limit", "2")
    assert made == {"name": "crawl", "kind": "utubettl", "options": {"fair": True, "utube_limit": 2}}
    with penstock.connect(shell.url) as broker:
        crawl, mail = broker.tubes()
    assert crawl.options == {"fair": True, "utube_limit": 2}
    assert mail.options == {"ttr": 60, "backoff": penstock.Backoff(1, 3, 60, 0)}


def test_a_failed_create_prints_one_line(shell: Shell) -> None:
    shell("create", "mail")
    assert shell.refused("create", "mail").startswith("tube mail exists already: use it as it is, remove it")
    assert shell.refused("create", "a b").startswith("tube 'a b' is not a name")
    assert "kind" in shell.refused("create", "x", "lifoo")
    assert shell.refused("create", "x", "--backoff", "1,two").startswith("backoff '1,two' is not BASE,FACTOR")
    assert shell.refused("create", "x", "fifo", "--ttl", "3").startswith("kind fifo has no option ttl")


def test_pause_resume_truncate_drop(shell: Shell) -> None:
    shell("put", "mail", "-", "--lines", stdin="a\nb\n")
    assert shell("pause", "mail") == "paused mail"
    assert shell("tubes").splitlines()[1].endswith("  paused")
    assert shell.json("take", "mail", "--timeout", "0") is None
    assert shell.json("resume", "mail") == {"tube": "mail", "verb": "resume"}
    shell("take", "mail", "--timeout", "0")
    assert (
        shell.refused("drop", "mail", "--yes") == "tube mail has taken tasks: ack or release them, or truncate it first"
    )
    for verb in ("truncate", "drop"):
        assert shell.refused(verb, "mail").endswith("There is no terminal to ask: add --yes")
    assert shell("truncate", "mail", "--yes") == "removed 2 tasks of mail"
    assert shell("drop", "mail", "--yes") == "dropped mail"
    assert shell.json("tubes") == []
    assert shell.refused("drop", "mail", "--yes") == (
        "tube mail does not exist: penstock tubes lists the tubes, penstock create creates one"
    )


def test_wait_returns_how_an_addressed_task_ended(shell: Shell) -> None:
    shell("put", "mail", "x", "--address", "first")
    shell("put", "mail", "y", "--address", "second")
    assert "not" in shell.refused("wait", "mail", "first", "--timeout", "0")
    with penstock.connect(shell.url) as broker:
        tube = broker.tube("mail")
        tube.take(0)
        tube.take(0)
        settle = threading.Timer(0.3, tube.ack, (1, {"sent": True}))
        settle.start()
        assert shell.json("wait", "mail", "first", "--timeout", "60") == {
            "status": "done", "error": None, "code": None, "result": {"sent": True},
        }  # fmt: skip
        settle.join()
        tube.fail(2, "no such user", 550)
    failed = shell.run("wait", "mail", "second")
    assert (failed.returncode, failed.stdout) == (1, "status  failed\nerror   no such user\ncode    550\n")


def test_options_are_altered(shell: Shell) -> None:
    shell("create", "mail", "--ttr", "60", "--ttl", "9")
    assert shell.json("alter", "mail", "--ttr", "30", "--max-attempts", "2", "--default", "ttl") == {
        "name": "mail", "options": {"ttr": 30, "max_attempts": 2},
    }  # fmt: skip
    assert shell("alter", "mail", "--backoff", "1,2") == "altered mail: backoff"
    with penstock.connect(shell.url) as broker:
        assert broker.tube("mail").stored.backoff == penstock.Backoff(1, 2)
    assert "nothing to alter" in shell.refused("alter", "mail")
    assert "fair of tube mail cannot be changed" in shell.refused("alter", "mail", "--default", "fair")


def test_groups_are_started_and_cancelled(shell: Shell) -> None:
    with penstock.connect(shell.url) as broker:
        for name in ("one", "two"):
            broker.tube("render").group(name).put_many(["x", "y"])
    started = shell.json("groups", "render", "--start", "one")
    assert [(group["name"], group["state"], group["total"]) for group in started] == [
        ("one", "started", 2), ("two", "open", 2),
    ]  # fmt: skip
    assert [group["name"] for group in shell.json("groups", "render", "--cancel", "two")] == ["one"]
    assert "group nobody is not live" in shell.refused("groups", "render", "--start", "nobody")


def test_schedules_are_listed_run_and_paused(shell: Shell) -> None:
    shell("migrate")
    assert shell.json("schedules") == []
    assert "this store has no schedules" in shell.refused("schedules", "--run", "x")
    app = penstock.App(shell.url)

    @app.every(3600, tube="hourly")
    def collect() -> None: ...

    [schedule] = declared(app.schedules)
    name = schedule.handler.name
    with app.broker as broker:
        schedule_status.save(broker.tube(schedule_status.SCHEDULE_TUBE), [schedule.record(broker.tube("hourly"))])
        (listed,) = shell.json("schedules", "--run", name, "--pause", name)
        assert (listed["schedule"], listed["plan"], listed["paused"]) == (name, "every 3600 s", True)
        assert broker.tube("hourly").stats().tasks.ready == 1
    assert "  paused  hourly  " in shell("schedules")
    assert shell.json("schedules", "--resume", name)[0]["paused"] is False
    assert "does not exist" in shell.refused("schedules", "--forget", "nobody")
