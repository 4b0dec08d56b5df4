"""The backend does what Django documents, through public names of Django and penstock."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections, transaction
from django.test import override_settings

import penstock
from penstock.django import task_results
from penstock.django.task_results import Status, base, exceptions, signals
from penstock.testing import Clock, run_queued
from tests.django.conftest import Use, work
from tests.django.shop import tasks
from tests.servers import empty_url

PATH = "penstock.django.PenstockBackend"
DAY = timedelta(days=1)


def test_a_task_is_put_run_and_its_result_read(backend: Any) -> None:
    result = tasks.note.enqueue(1, "two", delay=3, tube="x")
    assert (result.status, result.is_finished, result.attempts) == (Status.READY, False, 0)
    assert (result.args, result.kwargs, result.started_at) == ([1, "two"], {"delay": 3, "tube": "x"}, None)
    assert backend.get_result(result.id) == result
    assert work(backend) == 1
    result.refresh()
    assert (result.status, result.return_value) == (Status.SUCCESSFUL, [1, "two", {"delay": 3, "tube": "x"}])
    assert (result.attempts, result.errors, len(result.worker_ids)) == (1, [], 1)
    assert result.enqueued_at <= result.started_at <= result.last_attempted_at
    assert (result.enqueued_at.tzinfo, result.finished_at.tzinfo) == (UTC, UTC)
    assert tasks.note.get_result(result.id) == result


def test_an_async_task_is_put_and_read_in_a_loop(backend: Any) -> None:
    async def main() -> Any:
        result = await tasks.greet.aenqueue("ada")
        assert (await tasks.greet.aget_result(result.id)).status == Status.READY
        await asyncio.to_thread(work, backend)
        await result.arefresh()
        return result

    assert asyncio.run(main()).return_value == "hello ada"


def test_a_result_keeps_how_its_task_was_put(backend: Any) -> None:
    when = datetime.now(UTC) + DAY
    put = tasks.note.using(priority=-7, queue_name="mail", run_after=when).enqueue([{"a": None}])
    found = backend.get_result(put.id)
    assert found == put
    assert (found.task.priority, found.task.queue_name, found.task.run_after) == (-7, "mail", when)


def test_a_queue_is_a_tube_and_priority_and_run_after_are_options(backend: Any, clock: Clock) -> None:
    now = datetime.fromtimestamp(clock.seconds, UTC)
    for priority in (0, -100, 100):
        tasks.note.using(priority=priority).enqueue(priority)
    tasks.note.using(priority=100, run_after=now + DAY).enqueue("later")
    tasks.note.using(run_after=now - DAY).enqueue("past")
    tasks.greet.enqueue("ada")
    tubes = {info.name: backend.app.broker.tube(info.name).stats().tasks for info in backend.app.broker.tubes()}
    assert (tubes["mail"].ready, tubes["default"].ready, tubes["default"].delayed) == (1, 4, 1)
    tasks.ran.clear()
    work(backend)
    assert [args[0] for args, _ in tasks.ran] == [100, 0, "past", -100]
    clock.advance(DAY.total_seconds())
    work(backend)
    assert tasks.ran[-1] == (("later",), {})


def test_an_exception_fails_the_task_with_its_text(backend: Any) -> None:
    result = tasks.decline.enqueue()
    work(backend)
    result.refresh()
    assert (result.status, result.attempts) == (Status.FAILED, 1)
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.errors[0].exception_class is tasks.Declined
    assert "in decline\n" in result.errors[0].traceback
    assert result.errors[0].traceback.endswith("Declined: no card\nat all\n")


@pytest.mark.parametrize(
    ("failing", "raised"),
    [(tasks.leave, SystemExit), (tasks.odd, TypeError), (tasks.give_up, penstock.Fail), (tasks.large, TypeError)],
)
def test_exits_unserializable_results_and_wrong_arguments_fail_too(
    backend: Any, failing: Any, raised: type[BaseException]
) -> None:
    result = failing.enqueue()
    work(backend)
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (Status.FAILED, raised)


def test_a_failed_task_is_buried_and_a_kick_runs_it_again(backend: Any) -> None:
    result = tasks.decline.enqueue()
    work(backend)
    assert backend.app.broker.tube("default").kick(9) == 1
    result.refresh()
    assert (result.status, len(result.errors)) == (Status.READY, 1)


def test_a_tube_with_max_attempts_retries(use: Use, clock: Clock) -> None:
    backend = use(tubes={"default": {"max_attempts": 2, "backoff": penstock.Backoff(base=60, jitter=0)}})
    result = tasks.decline.enqueue()
    work(backend)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.READY, 1, 1)
    assert result.errors[0].exception_class is tasks.Declined
    clock.advance(60)
    work(backend)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.FAILED, 2, 2)
    ended = tasks.give_up.enqueue()
    work(backend)
    assert backend.get_result(ended.id).attempts == 1


def test_a_task_may_ask_for_a_retry(backend: Any, clock: Clock) -> None:
    result = tasks.once_more.enqueue()
    work(backend)
    assert backend.get_result(result.id).status == Status.READY
    clock.advance(60)
    work(backend)
    assert backend.get_result(result.id).return_value == 2


def test_a_task_gets_its_context(backend: Any) -> None:
    result = tasks.who.enqueue("!")
    work(backend)
    assert backend.get_result(result.id).return_value == f"RUNNING {result.id} 1 ['!'] !"


def test_a_task_uses_the_database(backend: Any) -> None:
    result = tasks.one.enqueue()
    work(backend)
    assert backend.get_result(result.id).return_value == 1


def test_signals_are_sent_for_every_step(backend: Any) -> None:
    reported: list[tuple[str, Any]] = []
    connected = []
    for name in ("enqueued", "started", "finished"):

        def tell(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            assert sender is type(backend)
            assert (sys.exc_info()[0] is tasks.Declined) == (task_result.status == Status.FAILED)
            reported.append((f"{name} {task_result.status} {len(task_result.errors)}", task_result.id))

        connected.append(tell)
        getattr(signals, f"task_{name}").connect(tell)
    good, bad = tasks.note.enqueue(), tasks.decline.enqueue()
    work(backend)
    assert reported == [
        ("enqueued READY 0", good.id), ("enqueued READY 0", bad.id), ("started RUNNING 0", good.id),
        ("finished SUCCESSFUL 0", good.id), ("started RUNNING 0", bad.id), ("finished FAILED 1", bad.id),
    ]  # fmt: skip


def test_a_call_in_a_transaction_is_put_at_its_commit(backend: Any) -> None:
    with transaction.atomic():
        result = tasks.note.enqueue()
        assert result.enqueued_at is None
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            result.refresh()
    assert result.enqueued_at is not None
    assert backend.get_result(result.id) == result
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.note.enqueue(1 // 0)
    with pytest.raises(RuntimeError), transaction.atomic():
        tasks.note.enqueue()
        raise RuntimeError
    assert work(backend) == 1


def test_a_put_by_on_commit_is_put_at_the_commit_and_not_at_a_rollback(backend: Any) -> None:
    app = penstock.App(backend.app.connection.url)

    @app.task(tube="mail")
    def send(user: str) -> None: ...

    tube = app.broker.tube("mail")
    with transaction.atomic():
        transaction.on_commit(partial(send.put, "ada"))
        assert tube.stats().tasks.total == 0
    assert tube.stats().tasks.total == 1
    with pytest.raises(RuntimeError), transaction.atomic():
        transaction.on_commit(partial(send.put, "eve"))
        raise RuntimeError
    assert [task.data["args"] for task in tube.take_many(9, 0)] == [{"user": "ada"}]
    app.close()


def test_enqueue_now_does_not_wait_for_a_commit(use: Use) -> None:
    backend = use(enqueue="now")
    with pytest.raises(RuntimeError), transaction.atomic():
        tasks.note.enqueue()
        raise RuntimeError
    assert work(backend) == 1


@pytest.fixture
def site_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a store in the PostgreSQL database that is the project's own."""
    url = empty_url("postgres")
    monkeypatch.setattr(connections, "settings", connections.configure_settings({"default": _database(url)}))
    monkeypatch.delattr(connections._connections, "default", raising=False)
    yield url
    connections["default"].close()
    monkeypatch.delattr(connections._connections, "default", raising=False)


def test_enqueue_in_transaction_is_a_part_of_it(use: Use, site_url: str) -> None:
    backend = use(site_url, enqueue="in_transaction", tubes={"default": {"ttr": 60}})
    with pytest.raises(RuntimeError), transaction.atomic():
        tasks.note.enqueue("gone")
        raise RuntimeError
    with transaction.atomic():
        result = tasks.note.enqueue("kept")
        assert result.enqueued_at is not None
        with pytest.raises(exceptions.TaskResultDoesNotExist):  # on the broker's own connection
            backend.get_result(result.id)
    assert backend.get_result(result.id) == result
    tasks.ran.clear()
    assert work(backend) == 1
    assert tasks.ran == [(("kept",), {})]


@pytest.mark.parametrize("how", ["set_rollback", "a block that failed", "close"])
def test_a_task_whose_transaction_django_rolls_back_silently_is_retried(site_url: str, how: str) -> None:
    app = penstock.App(site_url)

    @app.task(backoff=penstock.Backoff(base=600, jitter=0))
    def ship() -> str:
        with penstock.current_task().transaction(connections["default"], result="shipped"):
            if how == "set_rollback":
                transaction.set_rollback(True)
            elif how == "close":
                connections["default"].close()
            else:
                with suppress(KeyError), transaction.atomic(savepoint=False):
                    raise KeyError
        return "ignored"

    handle = ship.put()
    run_queued(app, raises=False)
    assert (handle.status, handle.outcome) == ("delayed", None)
    [attempt] = app.broker.tube("default").peek(handle.id).errors
    if how != "close":
        assert attempt.error == "the transaction that acked it was not committed"
    app.close()


def _database(url: str) -> dict[str, Any]:
    place = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": place.path.lstrip("/"), "USER": place.username or "",
        "PASSWORD": place.password or "", "HOST": place.hostname or "", "PORT": place.port or "",
    }  # fmt: skip


@pytest.mark.parametrize(
    "id", ["", "default", "default:", "default:nobody", "other:x", "mail:x", "no tube:x", ":x", "default:\0", "a:b:c"]
)
def test_an_unknown_id_has_no_result(backend: Any, id: str) -> None:
    tasks.note.enqueue()
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        backend.get_result(id)


def test_a_task_that_was_cancelled_has_none_either(backend: Any) -> None:
    result = tasks.note.enqueue()
    assert backend.app.broker.tube("default").cancel(address=result.id.partition(":")[2])
    with pytest.raises(exceptions.TaskResultDoesNotExist, match="cancelled"):
        result.refresh()


def test_a_result_belongs_to_its_task(backend: Any) -> None:
    result = tasks.note.enqueue()
    with pytest.raises(exceptions.TaskResultMismatch):
        tasks.decline.get_result(result.id)


def test_what_is_not_json_is_refused_before_it_is_put(backend: Any) -> None:
    with pytest.raises(TypeError):
        tasks.note.enqueue(datetime.now(UTC))
    with pytest.raises(exceptions.TaskException):
        tasks.note.using(queue_name="nowhere")
    assert work(backend) == 0


def test_a_result_that_is_too_large_with_its_arguments_is_kept_without_them(use: Use) -> None:
    backend = use(tubes={"default": {"max_payload": 2000}})
    result = tasks.large.enqueue("x" * 1900)
    work(backend)
    found = backend.get_result(result.id)
    assert (found.return_value, found.args, found.kwargs) == (1900, [], {})


def test_other_programs_put_tasks_by_name(backend: Any) -> None:
    tube = backend.app.broker.tube("default")
    for data in (
        {"task": "tests.django.shop.tasks.note", "args": [1]},
        {"task": "tests.django.shop.tasks.note", "args": {"two": 2}},
        b'{"task": "tests.django.shop.tasks.note"}',
        {"task": "os.system", "args": ["true"]},
        "no call",
    ):
        tube.put(data)
    tasks.ran.clear()
    work(backend)
    assert tasks.ran == [((1,), {}), ((), {"two": 2}), ((), {})]


def test_a_worker_serves_the_queues_of_its_backend_and_no_other(use: Use) -> None:
    app = use().app
    app.load()
    assert {handler.rules.tube for handler in app.handlers.values()} == {"default", "mail"}
    with override_settings(
        TASKS={"default": {"BACKEND": PATH, "QUEUES": ["other"], "OPTIONS": {"url": app.connection.url}}}
    ):
        other = task_results.task_backends["default"].app
        other.load()
        assert {handler.rules.tube for handler in other.handlers.values()} == {"other"}


def test_times_are_naive_without_time_zones(backend: Any) -> None:
    with override_settings(USE_TZ=False):
        when = datetime.now() + DAY  # noqa: DTZ005 - as such a project has them
        result = tasks.note.using(run_after=when).enqueue()
        assert backend.get_result(result.id) == result
        assert (result.task.run_after, result.enqueued_at.tzinfo) == (when, None)


def test_the_backends_of_all_threads_share_a_connection(backend: Any) -> None:
    found: list[Any] = []

    def put() -> None:
        tasks.note.enqueue()
        found.append(tasks.note.get_backend())

    thread = threading.Thread(target=put)
    thread.start()
    thread.join()
    assert found[0] is not backend
    assert found[0].app is backend.app
    assert work(backend) == 1


def test_a_task_declared_for_another_backend_is_known_by_its_module(backend: Any) -> None:
    before = dict(task_results.known)
    task_results.known.clear()
    try:
        task_results.load_tasks()
        assert "tests.django.shop.tasks.greet" in task_results.known
        assert all(isinstance(task, base.Task) for task in task_results.known.values())
    finally:
        task_results.known.update(before)
