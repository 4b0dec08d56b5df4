"""Broken connections: which error is raised, what is retried, and that no broken connection is reused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import penstock
from penstock.store.redis.redis_store import RedisStore
from tests.redis.closed_connections import hung_up
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis
from tests.support.inspection import waiters
from tests.support.threads import begin, until


@pytest.fixture
def proxy(server: Redis) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def broker(server: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[penstock.Broker]:
    """A broker whose connections go through the proxy, and that retries however long each try takes."""
    monkeypatch.setattr("penstock.store.redis.servers.PATIENCE_SECONDS", 300.0)
    with penstock.connect(server.fresh_url().replace(str(server.port), str(proxy.port))) as broker:
        yield broker


def test_a_put_whose_answer_is_lost_has_an_unknown_outcome(broker: penstock.Broker, proxy: Proxy) -> None:
    tube = broker.tube("t")
    tube.put("a")
    proxy.lose_answers = True
    with pytest.raises(penstock.OutcomeUnknown, match="may or may not"):
        tube.put("b")
    proxy.lose_answers = False
    assert [task.data for task in tube.tasks()] == ["a", "b"]  # this time it was stored, and only once
    assert tube.put("c").id == 3


def test_an_idle_connection_that_was_cut_is_replaced(broker: penstock.Broker, proxy: Proxy) -> None:
    tube = broker.tube("t")
    for id in (1, 2, 3):
        assert tube.put("x").id == id
        proxy.cut()
        hung_up(broker)


def test_reads_and_heartbeats_are_retried(broker: penstock.Broker, proxy: Proxy) -> None:
    tube = broker.tube("t")
    tube.put("x")
    before, proxy.losses = proxy.lost_answers, 3
    assert tube.stats().tasks.total == 1
    assert proxy.lost_answers == before + 3


def test_a_call_that_is_interrupted_leaves_no_answer_behind(broker: penstock.Broker) -> None:
    """An exception in the middle of an exchange, which a signal handler may raise, closes that connection."""
    tube = broker.tube("t")
    tube.put("a")
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    idle = store._servers._connections.pool.idle[-1]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(idle.connection, "read_response", _interrupted)
        tube.put("b")
    assert idle not in store._servers._connections.pool.idle
    assert idle.connection._sock is None
    assert tube.put("c").id == 3


def _interrupted(*args: object, **kwargs: object) -> object:
    raise KeyboardInterrupt


def test_a_blocked_taker_reconnects_and_continues(
    broker: penstock.Broker, proxy: Proxy, server: Redis, asleep: threading.Event
) -> None:
    tube = broker.tube("t")
    waiting = begin(lambda: tube.take(120))
    assert asleep.wait(30)
    assert waiters(broker, "t") == 1
    proxy.cut()
    with penstock.connect(server.url + f"?prefix={_prefix(broker)}") as other:
        other.tube("t").put("x")
    task = waiting.result(timeout=30)
    assert task is not None
    assert task.data == "x"


def test_a_blocked_taker_continues_after_an_unanswered_poll(
    broker: penstock.Broker, proxy: Proxy, asleep: threading.Event
) -> None:
    tube = broker.tube("t")
    waiting = begin(lambda: tube.take(120))
    assert asleep.wait(30)
    assert waiters(broker, "t") == 1
    before, proxy.lose_answers = proxy.lost_answers, True
    until(lambda: proxy.lost_answers > before)  # the scan at the latest
    proxy.lose_answers = False
    tube.put("x")
    task = waiting.result(timeout=30)
    assert task is not None
    assert (task.data, waiters(broker, "t")) == ("x", 0)


@pytest.mark.parametrize("verb", ["kick", "release_all", "truncate"])
def test_a_call_of_several_steps_that_breaks_off_has_an_unknown_outcome(
    own_server: Redis, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """StoreUnavailable would say that nothing was changed, but its first step was applied."""
    monkeypatch.setattr("penstock.store.redis.servers.TRIES", 1)
    with penstock.connect(own_server.fresh_url()) as broker:
        tube, store = broker.tube("t"), broker.runtime.store
        assert isinstance(store, RedisStore)
        tube.put_many(range(1500))
        for task in tube.take_many(1500) if verb != "truncate" else []:
            task.bury() if verb == "kick" else None
        run, steps = store._runner.on_tube, count()

        def dying(*arguments: Any, **options: Any) -> object:
            if arguments[0] == "apply" and next(steps) == 1:
                own_server.kill()
                hung_up(broker)
            return run(*arguments, **options)

        monkeypatch.setattr(store._runner, "on_tube", dying)
        with pytest.raises(penstock.OutcomeUnknown, match=r"partly applied \(\d+ tasks\)"):
            getattr(tube, verb)(*([1500] if verb == "kick" else []))
        own_server.start()


def test_a_put_many_of_several_chunks_that_breaks_off_has_an_unknown_outcome(
    own_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.redis.servers.TRIES", 1)
    with penstock.connect(own_server.fresh_url()) as broker:

        def feed() -> Iterator[int]:
            yield from range(10_000)
            own_server.kill()
            hung_up(broker)
            yield 10_000

        tube = broker.tube("t", kind="fifo")
        with pytest.raises(penstock.OutcomeUnknown, match=r"partly applied \(10000 tasks\)"):
            tube.put_many(feed())
        own_server.start()


@pytest.mark.usefixtures("unscanned")
@pytest.mark.parametrize("delay", [0, 0.1])
def test_a_taker_of_another_process_is_woken_by_a_notification(server: Redis, delay: float) -> None:
    """Two stores that know nothing of each other, as in two processes."""
    url = server.fresh_url()
    with penstock.connect(url) as one, penstock.connect(url) as other:
        other.runtime.wait_queue = type(other.runtime.wait_queue)()  # as in another process: wakes nobody here
        for _ in range(3):
            waiting = begin(lambda: one.tube("t").take(60))
            until(lambda: waiters(other, "t") == 1)
            until(lambda: _prefix(one) in server.ask("PUBSUB", "CHANNELS"))
            other.tube("t").put("x", delay=delay)
            task = waiting.result(timeout=30)
            assert task is not None
            task.ack()


def test_the_subscriber_ends_when_nobody_waits(server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.receiver.LINGER_SECONDS", 0.2)
    with penstock.connect(server.fresh_url()) as broker:
        broker.tube("t").take(0.5)
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        until(lambda: store._subscriber._thread is None)


def _prefix(broker: penstock.Broker) -> str:
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    return store._keys.prefix
