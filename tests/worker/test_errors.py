"""The stored errors of attempts whose handler raised, in any executor."""

from __future__ import annotations

import socket

import pytest

import penstock
from penstock.app.app import App
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Run, Start


def buried(app: App, tube: str, id: object) -> penstock.Task:
    found = app.broker.tube(tube)
    until(lambda: found.peek(id).status == "!", PATIENCE)  # type: ignore[arg-type]
    return found.peek(id)  # type: ignore[arg-type]


def test_an_exception_is_kept_with_its_traceback(app: App, run: Run) -> None:
    handle = jobs.fail.put("no such user")
    run("default")
    task = buried(app, "default", handle.id)
    assert [each.attempt for each in task.errors] == [1, 2, 3]
    assert {each.host for each in task.errors} == {socket.gethostname()}
    last = task.errors[-1]
    assert last.error == task.reason
    assert last.error in last.traceback
    assert last.traceback.splitlines()[1].strip().startswith(f'File "{jobs.__file__}"')
    assert "penstock/worker" not in last.traceback
    assert 0 <= last.at - task.created < PATIENCE
    with pytest.raises(penstock.TaskFailed) as failed:
        handle.wait(0)
    assert (failed.value.error, failed.value.errors) == (task.reason, task.errors)


def test_bury_fail_and_retry_are_reported_too(app: App, run: Run) -> None:
    burying, retrying = jobs.bury.put("aside"), jobs.retry_until.put(2)
    failing = jobs.give_in.put("no such user", 404)
    run("default")
    run("rules")
    assert [each.error for each in buried(app, "default", burying.id).errors] == ["aside"]
    outcome = retrying.wait(PATIENCE)
    assert (outcome.status, [each.attempt for each in outcome.errors]) == ("done", [1])
    [error] = failing.wait(PATIENCE).errors
    assert (error.attempt, error.error) == (1, "no such user")
    assert error.traceback.endswith("Fail: no such user (code 404)\n")
    assert outcome.errors[0].traceback.endswith("Retry: not yet\n")


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_signal_without_a_reason_reports_the_exception_that_led_to_it(app: App, start: Start, where: str) -> None:
    refuse = jobs.refuse_here if where == "thread" else jobs.refuse_in_process
    retrying, burying, hidden = (refuse.put(how) for how in ("retry from", "bury", "hidden"))
    start("--processes", "1")
    tube = refuse.rules.tube
    for handle in (retrying, burying):
        task = buried(app, tube, handle.id)
        assert {each.error for each in task.errors} == {"OSError: 451 try later"}
        assert task.reason == "OSError: 451 try later"
    task = buried(app, tube, hidden.id)
    assert ([each.error for each in task.errors], task.reason) == (["Bury"], None)


def test_a_passed_time_limit_has_no_traceback(app: App, run: Run, send: object) -> None:
    handle = jobs.hang.put("late")
    run("rules")
    errors = buried(app, "rules", handle.id).errors
    assert [(each.error, each.traceback) for each in errors] == [("timed out after 0.2 s", "")] * 2
    for _ in errors:
        send("late")  # type: ignore[operator]


def test_another_process_reports_its_own_traceback(app: App, start: Start) -> None:
    raising, dying = jobs.crash.put("raise"), jobs.crash.put("exit")
    start("--processes", "1")
    last = buried(app, "processes", raising.id).errors[-1]
    assert (last.attempt, last.error in last.traceback, "jobs.py" in last.traceback) == (2, True, True)
    assert "penstock/worker" not in last.traceback
    dead = buried(app, "processes", dying.id).errors[-1]
    assert ("died" in dead.error, dead.traceback) == (True, "")


def test_a_snooze_leaves_no_error(app: App, run: Run) -> None:
    handle = jobs.snooze.put(2, 0.01)
    run("rules")
    assert handle.wait(PATIENCE).errors == []
