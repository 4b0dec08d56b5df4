"""Groups of calls: they start together, a callback follows, and the group decides what a failure does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import run_queued


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    app = penstock.App(store_url)

    @app.task(tube="reports", name="report", max_attempts=1)
    def report(user: str) -> str:
        if user == "bad":
            raise ValueError("no such user")
        if user == "worse":
            raise penstock.Bury("never")
        return f"report of {user}"

    @app.task(tube="reports", name="summary")
    def summary() -> str:
        return "all done"

    @app.task(tube="other", name="other")
    def other() -> None: ...

    yield app
    app.close()


def test_a_group_of_calls_runs_then_its_last_call(app: App) -> None:
    report, summary = app.handlers["report"], app.handlers["summary"]
    with app.group("nightly") as group:
        handles = [group.put(report.call(user)) for user in "abc"]
        group.then(summary.call())
        assert (group.status, group.progress()) == ("open", penstock.Progress(0, 3, 0))
        assert run_queued(app) == 0
    assert group.status == "running"
    assert run_queued(app) == 4
    assert (group.status, group.wait(0), group.progress()) == ("done", "done", penstock.Progress(3, 3, 0))
    found = list(group.results())
    assert [(id, outcome.status, outcome.result) for id, outcome in found] == [
        (handle.id, "done", f"report of {user}") for handle, user in zip(handles, "abc", strict=True)
    ]
    assert handles[0].result(0) == "report of a"


def test_hold_waits_for_a_buried_call(app: App) -> None:
    report = app.handlers["report"]
    with app.group("nightly") as group:
        group.put_many([report.call("a"), report.call("bad")])
    run_queued(app, raises=False)
    assert (group.status, group.progress()) == ("running", penstock.Progress(1, 2, 0))
    done, buried = [outcome for _, outcome in group.results()]
    assert (done.status, buried.status) == ("done", "buried")
    assert [attempt.error for attempt in buried.errors] == [buried.error]
    app.broker.tube("reports").kick()
    run_queued(app, raises=False)
    assert group.status == "running"


@pytest.mark.parametrize("user", ["bad", "worse"])
def test_continue_lets_a_call_fail_and_the_group_end(app: App, user: str) -> None:
    report, summary = app.handlers["report"], app.handlers["summary"]
    with app.group("nightly", on_failure="continue") as group:
        group.put_many([report.call("a"), report.call(user), report.call("c")])
        group.then(summary.call())
    assert run_queued(app, raises=False) == 4
    assert (group.status, group.progress()) == ("done", penstock.Progress(3, 3, 1))
    statuses = [(outcome.status, outcome.error or "") for _, outcome in group.results()]
    assert [status for status, _ in statuses] == ["done", "failed", "done"]
    assert statuses[1][1].endswith("no such user" if user == "bad" else "never")
    stats = app.broker.tube("reports").stats()
    assert (stats.tasks.buried, stats.calls.bury, stats.calls.fail, stats.tasks.total) == (0, 0, 1, 0)


def test_continue_holds_when_the_worker_is_gone(app: App) -> None:
    report = app.handlers["report"]
    with app.group("nightly", on_failure="continue") as group:
        group.put(report.call("a"))
    with app.broker.session() as session:
        assert session.tube("reports").take(0) is not None
    app.broker.tube("reports").stats()  # applies what is due
    assert (group.status, group.progress()) == ("done", penstock.Progress(1, 1, 1))
    assert [outcome.status for _, outcome in group.results()] == ["failed"]


def test_cancel_cancels_the_rest(app: App) -> None:
    report, summary = app.handlers["report"], app.handlers["summary"]
    with app.group("nightly", on_failure="cancel") as group:
        group.put_many([report.call("bad"), report.call("b"), report.call("c")])
        group.then(summary.call())
    assert run_queued(app, raises=False) == 1
    assert (group.wait(5), group.status) == ("cancelled", "cancelled")
    assert [outcome.status for _, outcome in group.results()] == ["failed", "cancelled", "cancelled"]
    assert group.progress() == penstock.Progress(3, 3, 1)
    assert len(app.broker.tube("reports")) == 0


def test_an_exception_in_the_block_cancels_the_group(app: App) -> None:
    report = app.handlers["report"]
    with pytest.raises(KeyError), app.group("nightly") as group:
        group.put(report.call("a"))
        raise KeyError("x")
    assert group.status == "cancelled"
    assert run_queued(app) == 0


def test_an_empty_block_stores_nothing(app: App) -> None:
    with app.group("nightly", tube="reports") as group:
        assert group.status == "open"
    assert (group.status, group.progress(), list(group.results()), group.wait(0)) == (
        "done", penstock.Progress(0, 0, 0), [], "done",
    )  # fmt: skip
    with pytest.raises(penstock.NotFound):
        app.broker.tube("reports").group("nightly", create=False)


def test_an_exception_in_an_empty_block_cancels_the_group(app: App) -> None:
    with pytest.raises(KeyError), app.group("nightly") as group:
        raise KeyError("x")
    assert (group.status, group.wait(0)) == ("cancelled", "cancelled")


def test_what_does_not_fit_is_refused(app: App) -> None:
    report, other = app.handlers["report"], app.handlers["other"]
    with pytest.raises(penstock.BadValue, match="on_failure"):
        app.group("nightly", on_failure="retry")
    with app.group("nightly") as group:
        group.put(report.call("a"))
        for refused in (
            lambda: group.put(other.call()),
            lambda: group.then(other.call()),
            lambda: group.put(report.call("b").options(address="mine")),
        ):
            with pytest.raises(penstock.BadValue):
                refused()
        with pytest.raises(penstock.BadValue, match="live"), app.group("nightly") as second:
            second.put(report.call("b"))
        with pytest.raises(penstock.BadValue, match="live"), app.group("nightly", tube="reports"):
            pass
    assert group.progress().total == 1


def test_a_sharded_tube_refuses_groups(app: App) -> None:
    report, tube = app.handlers["report"], app.broker.tube("reports", shards=2)
    with pytest.raises(penstock.UnsupportedOption, match="shards=2"), app.group("nightly") as group:
        group.put(report.call("a"))
    with pytest.raises(penstock.UnsupportedOption, match="shards=2"), app.group("nightly", tube="reports"):
        pass
    assert tube.stats().tasks.total == 0


def test_an_ended_group_is_found_by_its_name(app: App) -> None:
    report, tube = app.handlers["report"], app.broker.tube("reports")
    with pytest.raises(penstock.NotFound):
        tube.group("nightly", create=False)
    for user in ("a", "b"):
        with app.group("nightly") as group:
            group.put(report.call(user))
        live = tube.group("nightly", create=False)
        assert live.status == "running"
        run_queued(app)
        ended = tube.group("nightly", create=False)
        assert (ended.status, ended.progress()) == ("done", penstock.Progress(1, 1, 0))
        assert [outcome.result for _, outcome in ended.results()] == [f"report of {user}"]
        with pytest.raises(penstock.NotFound):
            ended.put("more")
    found: list[Any] = tube.tasks()
    assert found == []
