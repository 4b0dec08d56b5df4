"""What a handler can send about its task, time limits, and the rules for tasks that others put, on every store."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import penstock
from penstock.app.app import App
from tests.conftest import STORES
from tests.support.threads import until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs
from tests.worker.conftest import Run, Start

Receive = Callable[[], object]
Send = Callable[[str], None]

every_store = pytest.mark.parametrize("url", STORES, indirect=True)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"task": name, "args": arguments}


@every_store
def test_a_snoozed_task_returns_without_using_up_an_attempt(app: App, run: Run) -> None:
    handle = jobs.snooze.options(max_attempts=1).put(3, 0.01)
    run("rules")
    assert handle.result(PATIENCE) == 1
    calls = app.broker.tube("rules").stats().calls
    assert (calls.release, calls.bury, calls.ack) == (3, 0, 1)


def test_a_snoozed_task_waits_for_its_delay(app: App, run: Run) -> None:
    handle = jobs.snooze.put(1, 30)
    run("rules")
    until(lambda: app.broker.tube("rules").peek(handle.id).status == "~")
    task = app.broker.tube("rules").peek(handle.id)
    assert task.attempts == 0
    assert task.due - task.created > 29


@every_store
def test_fail_ends_the_task_without_a_retry(app: App, run: Run) -> None:
    handle = jobs.give_in.put("no such user", 404)
    run("rules")
    outcome = handle.wait(PATIENCE)
    assert (outcome.status, outcome.error, outcome.code) == ("failed", "no such user", 404)
    assert app.broker.tube("rules").stats().calls.fail == 1


@pytest.mark.parametrize("bad", [None, 7])
def test_fail_needs_a_text_and_snooze_a_delay(bad: object) -> None:
    with pytest.raises(penstock.BadValue, match="error"):
        penstock.Fail(bad)  # type: ignore[arg-type]
    with pytest.raises(penstock.BadValue, match="delay"):
        penstock.Snooze("soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -1, "long"])
def test_a_time_limit_is_above_zero(bad: float) -> None:
    with pytest.raises(penstock.BadValue, match="time_limit"):
        penstock.App().task(time_limit=bad)(call)


@every_store
def test_the_lease_of_a_stuck_thread_is_not_extended(app: App, run: Run, receive: Receive, send: Send) -> None:
    handle = jobs.hang.put("late")
    worker = run("rules", concurrency=4)
    assert [receive(), receive()] == [["began", "late"], ["began", "late"]]
    tube = app.broker.tube("rules")
    until(lambda: tube.peek(handle.id).status == "!", PATIENCE)
    task = tube.peek(handle.id)
    assert (task.reason, task.attempts) == ("timed out after 0.2 s", 2)
    assert (worker.state.stats.stuck, worker.state.slots.running) == (2, 0)
    send("late")
    send("late")
    until(lambda: worker.state.stats.stuck == 0, PATIENCE)
    assert tube.stats().calls.ack == 0
    assert jobs.give_in.put("runs on").wait(PATIENCE).status == "failed"


def test_a_thread_that_is_stuck_while_it_waits_takes_no_slot(app: App, run: Run, send: Send) -> None:
    handle = jobs.hang_aside.put("aside")
    worker = run("rules", concurrency=4)
    tube = app.broker.tube("rules")
    until(lambda: tube.peek(handle.id).status == "!", PATIENCE)
    send("aside")
    send("aside")
    until(lambda: worker.state.stats.stuck == 0, PATIENCE)
    until(lambda: (worker.state.slots.running, worker.state.slots.waiting) == (0, 0))


def test_a_worker_whose_threads_are_all_stuck_exits(app: App, start: Start, receive: Receive) -> None:
    worker = start("--tubes", "rules", "--concurrency", "1", "--grace", "5")
    jobs.hang.put("never")
    assert receive() == ["began", "never"]
    assert worker.wait() == 1
    assert "stuck" in worker.log
    task = app.broker.tube("rules").tasks()[0]
    assert (task.attempts, task.reason) == (1, "timed out after 0.2 s")


def test_a_coroutine_is_cancelled_at_its_time_limit(app: App, run: Run) -> None:
    handles = [jobs.hang_async.put(), jobs.hang_async.put(stubborn=True)]
    run("limited-async")
    tube = app.broker.tube("limited-async")
    until(lambda: tube.stats().tasks.buried == 2, PATIENCE)
    assert {tube.peek(handle.id).reason for handle in handles} == {"timed out after 0.2 s"}


def test_a_process_is_killed_at_its_time_limit(app: App, run: Run) -> None:
    handle = jobs.hang_process.put()
    run("processes")
    tube = app.broker.tube("processes")
    until(lambda: tube.peek(handle.id).status == "!", PATIENCE)
    assert tube.peek(handle.id).reason == "timed out after 0.2 s"


def test_signals_of_a_handler_in_a_process(app: App, run: Run, receive: Receive) -> None:
    failed = jobs.signal_process.options(address="f").put("fail")
    run("processes")
    outcome = failed.wait(PATIENCE)
    assert (outcome.status, outcome.error, outcome.code) == ("failed", "gone", "E1")
    jobs.signal_process.put("snooze")
    assert receive() == ["attempt", 1]


@every_store
@pytest.mark.parametrize(
    ("tubes", "puts", "expected"),
    [(None, None, 3), (2, None, 3), (9, None, 3), (2, 4, 4), (None, 1, 1)],
    ids=["handler", "handler before a smaller tube", "handler before a larger tube", "put", "put alone"],
)
def test_the_handlers_max_attempts_apply_to_every_put(
    app: App, run: Run, receive: Receive, tubes: int | None, puts: int | None, expected: int
) -> None:
    tube = app.broker.create_tube("rules", "fifottl", max_attempts=tubes)
    task = tube.put(call("stumble"), max_attempts=puts)
    run("rules")
    until(lambda: tube.peek(task.id).status == "!", PATIENCE)
    assert [receive() for _ in range(expected)] == [["stumbled", number + 1] for number in range(expected)]
    assert (tube.peek(task.id).attempts, tube.peek(task.id).reason) == (expected, "ValueError: no")
    assert app.broker.tube("reported").take(0) is None


@pytest.mark.parametrize("tubes", [None, 4])
def test_without_a_handler_s_own_the_tube_s_count_then_twenty(app: App, run: Run, tubes: int | None) -> None:
    tube = app.broker.create_tube("rules", "fifottl", max_attempts=tubes)
    task = tube.put(call("give_way", number=1))
    run("rules")
    until(lambda: tube.peek(task.id).status == "!", PATIENCE)
    assert tube.peek(task.id).attempts == (tubes or 20)


@every_store
@pytest.mark.parametrize("kind", ["fifottl", "fifo"])
def test_tasks_that_are_put_as_bytes_of_json_are_run(app: App, run: Run, kind: str) -> None:
    tube = app.broker.create_tube("rules", kind)
    task = tube.put(json.dumps(call("stumble", word="x")).encode())
    bad = tube.put(b"\xff{", max_attempts=1)
    run("rules")
    until(lambda: tube.stats().tasks.buried == 2, PATIENCE)
    assert tube.peek(task.id).attempts == 3
    assert tube.peek(bad.id).data == b"\xff{"


@every_store
def test_the_handlers_ttr_applies_to_every_put(app: App, run: Run, receive: Receive, send: Send) -> None:
    tube = app.broker.create_tube("rules", "fifottl", ttr=60)
    task = tube.put(call("hold_rules", word="go"))
    run("rules")
    assert receive() == ["began", "go", 1]
    until(lambda: (found := tube.peek(task.id)).due - found.taken < 30, PATIENCE)
    until(lambda: tube.stats().calls.touch >= 3, PATIENCE)  # it is extended by that
    send("go")
    until(lambda: tube.stats().calls.ack == 1, PATIENCE)
    assert tube.stats().calls.ttr == 0


@every_store
def test_a_lease_without_an_end_gets_the_handler_s_ttr(app: App, run: Run, receive: Receive, send: Send) -> None:
    tube = app.broker.create_tube("rules", "fifottl")
    task, own = tube.put(call("hold_rules", word="go")), tube.put(call("hold_rules", word="go"), ttr=40)
    run("rules")
    assert {str(receive()) for _ in range(2)} == {"['began', 'go', 1]"}
    until(lambda: tube.peek(task.id).due is not None, PATIENCE)
    due = tube.peek(own.id)
    assert due.due - due.taken >= 39.9  # the put's own
    send("go")
    send("go")
    until(lambda: tube.stats().calls.ack == 2, PATIENCE)


def test_on_kinds_without_ttr_the_handler_s_is_ignored(app: App, run: Run, receive: Receive, send: Send) -> None:
    tube = app.broker.create_tube("rules", "fifo")
    jobs.hold_rules.put("go")
    with pytest.raises(penstock.UnsupportedOption, match="ttr"):
        jobs.hold_rules.options(ttr=3).put("go")
    run("rules")
    assert receive() == ["began", "go", 1]
    assert tube.tasks()[0].due is None
    send("go")
    until(lambda: tube.stats().calls.ack == 1, PATIENCE)


def test_a_used_up_task_of_a_dead_worker_is_buried_before_it_runs_again(
    app: App, start: Start, receive: Receive
) -> None:
    tube = app.broker.create_tube("rules", "fifottl")
    task = tube.put(call("die_raw"))
    for attempt in (1, 2):
        worker = start("--tubes", "rules")
        assert receive() == ["dying", attempt]
        worker.wait()
    start("--tubes", "rules")
    until(lambda: tube.peek(task.id).status == "!", PATIENCE)
    found = tube.peek(task.id)
    assert (found.attempts, found.reason) == (2, "handed out 2 times without an ack")
    assert app.broker.tube("reported").take(0) is None
