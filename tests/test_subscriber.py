"""Who hears of changes elsewhere: the one that sleeps alone, and nobody's wake-up is lost on that way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.runtime.subscriber import Subscriber
from penstock.runtime.wait_queue import Topic, Waiter, WaitQueue

READY: Topic = ("ready", 1)
OTHER: Topic = ("ready", 2)


class Told:
    """News that a test tells: what happens during a look for them, and whether they go on."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None, *, goes_on: bool = True) -> None:
        self._meanwhile = meanwhile
        self._goes_on = goes_on
        self.calls: list[str] = []

    def lend(self) -> threading.Event:
        self.calls.append("lend")
        return threading.Event()

    def hear(self, seconds: float | None) -> bool:
        self.calls.append("hear")
        self._meanwhile()
        return self._goes_on

    def give_back(self) -> None:
        self.calls.append("give back")

    def listen_on(self) -> None:
        self.calls.append("listen on")


@pytest.fixture
def queue() -> WaitQueue:
    return WaitQueue()


def enter(queue: WaitQueue, news: Told, *topics: Topic) -> Waiter:
    waiter = queue.add(topics)
    waiter.subscriber = Subscriber(queue, news)
    return waiter


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_wake_up_while_it_hears_ends_the_sleep(queue: WaitQueue, goes_on: bool) -> None:
    news = Told(lambda: queue.wake(READY), goes_on=goes_on)
    assert enter(queue, news, READY, OTHER).sleep(60)
    assert news.calls == ["lend", "hear", "give back"]


def test_who_can_hear_no_more_looks_for_what_it_missed(queue: WaitQueue) -> None:
    assert enter(queue, Told(goes_on=False), READY).sleep(60)


def test_a_wake_up_before_it_sleeps_spares_the_sleep(queue: WaitQueue) -> None:
    news = Told()
    waiter = enter(queue, news, READY)
    queue.wake(READY)
    assert waiter.sleep(60)
    assert news.calls == ["lend", "give back"]


def test_its_time_may_be_over(queue: WaitQueue) -> None:
    assert not enter(queue, Told(), READY).sleep(0)


@pytest.mark.parametrize("topic", [READY, OTHER])
def test_beside_others_it_leaves_hearing_to_the_thread(queue: WaitQueue, topic: Topic) -> None:
    news = Told()
    queue.add((topic,))
    assert not enter(queue, news, READY).sleep(0)
    assert news.calls == ["listen on"]


def test_the_thread_goes_on_for_those_who_came_while_it_heard(queue: WaitQueue) -> None:
    def meanwhile() -> None:
        queue.add((OTHER,))
        queue.wake(READY)

    news = Told(meanwhile)
    assert enter(queue, news, READY).sleep(60)
    assert news.calls == ["lend", "hear", "give back", "listen on"]


def test_the_thread_hears_for_one_that_sleeps_without(queue: WaitQueue) -> None:
    news = Told()
    waiter = enter(queue, news, READY)
    assert not waiter.call_when_woken(lambda: True)
    waiter.call_when_woken(None)
    assert news.calls == ["listen on"]
