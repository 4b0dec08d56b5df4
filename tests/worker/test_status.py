"""A job's status in one word, its outcome, and which outcomes are stored, on every store (section 10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.app.app import App
from penstock.app.handle import Handle
from penstock.broker.broker import connect
from penstock.testing import Clock, run_queued
from tests.conftest import STORES
from tests.support.threads import begin, until
from tests.support.worker_process import PATIENCE
from tests.worker import jobs

pytestmark = pytest.mark.parametrize("url", STORES, indirect=True)


def looks(handle: Handle[Any]) -> tuple[str, str | None, str | None]:
    """Its status, and the status and error of its outcome."""
    outcome = handle.outcome
    return (handle.status, None, None) if outcome is None else (handle.status, outcome.status, outcome.error)


def test_the_status_of_a_task_in_its_tube(app: App) -> None:
    tube = app.broker.tube("default")
    handle, later = jobs.noop.put(1), jobs.noop.options(delay=60).put(2)
    assert (looks(handle), looks(later)) == (("ready", None, None), ("delayed", None, None))
    task = tube.take(0)
    assert task is not None
    assert looks(handle) == ("taken", None, None)
    task.bury("odd")
    assert looks(handle) == ("buried", "buried", "odd")
    outcome = handle.outcome
    assert outcome is not None
    with pytest.raises(penstock.TaskFailed, match="odd"):
        outcome.unwrap()
    with pytest.raises(penstock.TaskFailed, match="odd"):
        handle.wait(0)
    tube.kick()
    assert looks(handle) == ("ready", None, None)
    with pytest.raises(TimeoutError):
        handle.wait(0)
    tube.bury(task.id)
    with pytest.raises(penstock.TaskFailed, match="is buried; kick it") as failed:
        handle.wait(0)
    assert failed.value.error is None


def test_the_success_of_a_handler_without_a_result_is_not_kept(app: App) -> None:
    handle, kept = jobs.noop.put(1), jobs.echo.put(7)
    run_queued(app)
    assert looks(handle) == ("gone", "gone", None)
    assert handle.wait(0).status == "gone"
    with pytest.raises(penstock.NotFound, match="-> None"):
        handle.result(0)
    assert looks(kept) == ("done", "done", None)
    assert kept.result(0) == 7


def test_the_success_of_such_a_handler_is_not_kept_even_if_its_task_has_a_ttl(app: App) -> None:
    handle = jobs.noop.options(ttl=600).put(1)
    replied = jobs.noop.options(ttl=600, reply_to="replies").put(2)
    ended = begin(lambda: handle.wait(PATIENCE).status)
    run_queued(app)
    assert ended.result(PATIENCE) in ("done", "gone")
    assert looks(handle) == ("gone", "gone", None)
    assert handle.wait(0).status == jobs.noop.handle(handle.id).wait(0).status == "gone"
    by_name = app.handler("noop")  # which does not know that the function returns nothing
    assert [looks(by_name.handle(each.id)) for each in (handle, replied)] == [("gone", "gone", None)] * 2
    assert app.broker.tube("replies").stats().tasks.total == 1


@pytest.mark.parametrize("keeps", [False, True])
def test_other_ends_are_kept_for_every_handler_s_task(app: App, keeps: bool) -> None:
    tube = app.broker.tube("default")
    handler = jobs.echo if keeps else jobs.noop
    failed, cancelled, expired = handler.put(1), handler.put(2), handler.options(ttl=0.01).put(3)
    replied = handler.options(ttl=0.01, reply_to="replies").put(4)
    taken = tube.take(0)
    assert taken is not None
    taken.fail("no", 5)
    assert cancelled.cancel("not wanted") is True
    assert cancelled.cancel() is False
    until(lambda: expired.status == replied.status == "expired", PATIENCE)
    assert looks(failed) == ("failed", "failed", "no")
    assert failed.wait(0).code == 5
    assert looks(cancelled) == ("cancelled", "cancelled", "not wanted")
    assert looks(expired) == ("expired", "expired", None)
    assert [handle.wait(0).status for handle in (failed, cancelled, expired)] == ["failed", "cancelled", "expired"]
    for handle in (failed, cancelled, expired):
        with pytest.raises(penstock.TaskFailed):
            handle.result(0)
        assert handler.handle(handle.id).status == handle.status


def test_an_expired_task_in_a_program_that_only_puts(app: App, url: str, clock: Clock) -> None:
    app.close()
    app.connection._broker = connect(url, clock=clock)  # with no background thread that applies what is due
    handle, plain = jobs.echo.options(ttl=5).put(1), jobs.noop.options(ttl=5).put(2)
    clock.advance(5)
    assert looks(handle) == looks(plain) == ("expired", "expired", None)


def test_members_of_a_cancelled_group(app: App) -> None:
    handles = [jobs.noop.options(group="g").put(number) for number in range(3)]
    app.broker.tube("default").group("g").cancel()
    assert {looks(handle) for handle in handles} == {("cancelled", "cancelled", None)}


def test_an_id_that_was_never_put_is_unknown(app: App) -> None:
    jobs.noop.put(1)
    handle = jobs.noop.handle(2)
    assert looks(handle) == ("unknown", "unknown", None)
    with pytest.raises(penstock.NotFound, match="never put"):
        handle.wait(0)
    outcome = handle.outcome
    assert outcome is not None
    with pytest.raises(penstock.NotFound):
        outcome.unwrap()
    assert handle.cancel() is False


def test_an_address_that_was_never_put_is_unknown(app: App) -> None:
    outcome = app.broker.tube("default").wait("nowhere", 0)
    assert outcome.status == "unknown"
    with pytest.raises(penstock.NotFound):
        outcome.unwrap()


def test_awaited_handles(app: App) -> None:
    async def look() -> list[object]:
        handle = await jobs.noop.aio.put(1)
        before = await handle.status(), await handle.outcome()
        return [*before, await handle.cancel("stop"), await handle.status(), (await handle.wait(0)).error]

    assert asyncio.run(look()) == ["ready", None, True, "cancelled", "stop"]


def test_a_handle_whose_tube_was_dropped(app: App) -> None:
    handle = jobs.noop.put(1)
    app.broker.tube("default").drop()
    assert looks(handle) == ("deleted", "deleted", None)
