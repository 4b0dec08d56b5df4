"""Who reads notifications: a lone sleeper reads them itself, and no wake-up is lost when that changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.runtime.subscriber import Subscriber
from penstock.runtime.wait_queue import Topic, Waiter, WaitQueue

READY: Topic = ("ready", 1)
OTHER: Topic = ("ready", 2)


class FakeNotifications:
    """A subscriber controlled by the test: what happens during a poll, and whether it still works."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None, *, works: bool = True) -> None:
        self._meanwhile = meanwhile
        self._works = works
        self.calls: list[str] = []

    def acquire(self) -> threading.Event:
        self.calls.append("acquire")
        return threading.Event()

    def poll(self, seconds: float | None) -> bool:
        self.calls.append("poll")
        self._meanwhile()
        return self._works

    def release(self) -> None:
        self.calls.append("release")

    def listen(self) -> None:
        self.calls.append("listen")


@pytest.fixture
def queue() -> WaitQueue:
    return WaitQueue()


def enter(queue: WaitQueue, notifications: FakeNotifications, *topics: Topic) -> Waiter:
    waiter = queue.add(topics)
    waiter.subscriber = Subscriber(queue, notifications)
    return waiter


@pytest.mark.parametrize("works", [True, False])
def test_a_wake_up_during_a_poll_ends_the_sleep(queue: WaitQueue, works: bool) -> None:
    notifications = FakeNotifications(lambda: queue.wake(READY), works=works)
    assert enter(queue, notifications, READY, OTHER).sleep(60)
    assert notifications.calls == ["acquire", "poll", "release"]


def test_a_subscriber_that_lost_its_connection_polls_for_what_it_missed(queue: WaitQueue) -> None:
    assert enter(queue, FakeNotifications(works=False), READY).sleep(60)


def test_a_wake_before_the_sleep_skips_the_sleep(queue: WaitQueue) -> None:
    notifications = FakeNotifications()
    waiter = enter(queue, notifications, READY)
    queue.wake(READY)
    assert waiter.sleep(60)
    assert notifications.calls == ["acquire", "release"]


def test_its_time_may_be_over(queue: WaitQueue) -> None:
    assert not enter(queue, FakeNotifications(), READY).sleep(0)


@pytest.mark.parametrize("topic", [READY, OTHER])
def test_with_other_waiters_the_thread_polls(queue: WaitQueue, topic: Topic) -> None:
    notifications = FakeNotifications()
    queue.add((topic,))
    assert not enter(queue, notifications, READY).sleep(0)
    assert notifications.calls == ["listen"]


def test_the_polling_thread_continues_for_waiters_that_came_meanwhile(queue: WaitQueue) -> None:
    def meanwhile() -> None:
        queue.add((OTHER,))
        queue.wake(READY)

    notifications = FakeNotifications(meanwhile)
    assert enter(queue, notifications, READY).sleep(60)
    assert notifications.calls == ["acquire", "poll", "release", "listen"]


def test_the_thread_polls_for_a_waiter_that_cannot(queue: WaitQueue) -> None:
    notifications = FakeNotifications()
    waiter = enter(queue, notifications, READY)
    assert not waiter.call_when_woken(lambda: True)
    waiter.call_when_woken(None)
    assert notifications.calls == ["listen"]
