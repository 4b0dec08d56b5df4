"""News is not lost on its way to those who wait."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock.store.redis.store import RedisStore
from penstock.store.wake import Wake
from tests.behaviour.helpers import begin


@pytest.mark.parametrize("watch", [True, False])
def test_news_that_came_while_nobody_slept_is_told_at_once(broker: penstock.Broker, watch: bool) -> None:
    store = broker._hub.store
    assert isinstance(store, RedisStore)
    store._listener._tell()  # and whoever was awake has cleared the wake-up
    assert store.wait(threading.Event(), 60, watch=watch)


def test_a_waiter_listens_before_it_is_registered(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tube = broker._hub.store, broker.tube("t")
    assert isinstance(store, RedisStore)
    seen: list[bool] = []
    run = store._runner.servers.run

    def spied(request: object, **options: object) -> object:
        seen.append(tube._stored.no in store._listener.interests)
        return run(request, **options)  # type: ignore[arg-type]

    tube.put("x", address="a")
    monkeypatch.setattr(store._runner.servers, "run", spied)
    store.sought(tube._stored, 1)
    assert seen == [True]


def test_news_is_told_in_the_thread_that_heard_it_and_wakes_no_other(broker: penstock.Broker) -> None:
    told: list[str] = []
    wake, heard = Wake(), threading.Event()

    def note() -> None:
        told.append(threading.current_thread().name)
        heard.set()

    wake.on_news = note
    waiting = begin(lambda: broker._hub.store.wait(wake, 60, watch=True))
    assert heard.wait(10), "whoever begins to listen looks once"
    assert told == ["penstock-redis-news"]
    assert not waiting.done()
    wake.set()
    assert waiting.result(10) is False
