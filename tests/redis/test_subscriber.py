"""Notifications reach all waiters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import penstock
from penstock.aio.executor import BatchExecutor
from penstock.operations.operation import operation_of
from penstock.store.redis.redis_store import RedisStore
from penstock.system.wake import Wake
from tests.servers.redis import Redis
from tests.support.inspection import waiters
from tests.support.threads import begin, until


@pytest.mark.parametrize("watch", [True, False])
def test_a_notification_that_came_while_nobody_waited_is_seen_at_once(broker: penstock.Broker, watch: bool) -> None:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    store._subscriber.notify()  # and an awake waiter has cleared the wake-up
    assert store.wait(threading.Event(), 60, watch=watch)


def test_a_waiter_listens_before_it_is_registered(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tube = broker.runtime.store, broker.tube("t")
    assert isinstance(store, RedisStore)
    seen: list[bool] = []
    run = store._runner.servers.run

    def recorded(request: object, **options: object) -> object:
        seen.append(tube.stored.no in store._subscriber.interests)
        return run(request, **options)  # type: ignore[arg-type]

    tube.put("x", address="a")
    monkeypatch.setattr(store._runner.servers, "run", recorded)
    store.outcomes(tube.stored, [1])
    assert seen == [True]


@pytest.mark.usefixtures("unscanned")  # and the listening thread does not end
def test_a_notification_is_handled_in_the_listening_thread_and_wakes_no_other(broker: penstock.Broker) -> None:
    threads: list[str] = []
    wake, polled = Wake(), threading.Event()

    def note() -> None:
        threads.append(threading.current_thread().name)
        polled.set()

    wake.on_notification = note
    waiting = begin(lambda: broker.runtime.store.wait(wake, 60, watch=True))
    assert polled.wait(30), "a subscriber that starts to listen polls once"
    assert threads == ["penstock-redis-subscriber"]
    assert not waiting.done()
    wake.set()
    assert waiting.result(30) is False


@pytest.fixture
def other(url: str) -> Iterator[penstock.Broker]:
    """A store that the waiters of this one take for another process."""
    with penstock.connect(url) as other:
        other.runtime.wait_queue = type(other.runtime.wait_queue)()
        yield other


@pytest.mark.usefixtures("unscanned")
def test_every_waiter_is_notified_of_changes_in_other_processes(
    broker: penstock.Broker, other: penstock.Broker
) -> None:
    waiting = [begin(broker.tube(name).take) for name in "abc"]
    until(lambda: [waiters(other, name) for name in "abc"] == [1, 1, 1])
    for name, found in zip("abc", waiting, strict=True):
        other.tube(name).put(2)
        assert found.result(30) is not None


@pytest.mark.usefixtures("unscanned")
def test_a_waiter_without_a_thread_is_notified(other: penstock.Broker, broker: penstock.Broker) -> None:
    tube = broker.tube("t")

    async def main() -> object:
        executor = BatchExecutor()
        waiting = executor.run(operation_of(tube.take)(tube))
        await asyncio.to_thread(until, lambda: waiters(other, "t") == 1)
        other.tube("t").put(2)
        task = await asyncio.wait_for(waiting, 30)
        await executor.close(lambda: None)
        return task and task.data

    assert asyncio.run(main()) == 2


@pytest.mark.usefixtures("unscanned")
def test_a_connection_that_breaks_is_renewed(server: Redis, broker: penstock.Broker, other: penstock.Broker) -> None:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    waiting = begin(broker.tube("t").take)
    until(lambda: store._subscriber._sock is not None)
    sock = store._subscriber._sock
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    until(lambda: store._subscriber._sock not in (None, sock))
    other.tube("t").put("x")
    assert waiting.result(30) is not None


@pytest.mark.usefixtures("unscanned")
def test_a_sleep_ends_at_its_timeout_a_token_or_the_close_of_the_broker(
    broker: penstock.Broker, other: penstock.Broker
) -> None:
    tube = broker.tube("t")
    waiting = begin(tube.take)
    until(lambda: waiters(other, "t") == 1)
    tube.put("token")
    assert waiting.result(30) is not None
    assert tube.take(0.05) is None
    waiting = begin(tube.take)
    until(lambda: waiters(other, "t") == 1)
    broker.close()
    assert waiting.result(30) is None
