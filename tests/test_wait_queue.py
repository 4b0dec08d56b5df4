"""The queue of blocked callers: tokens, hints, and unused wake-ups."""

from __future__ import annotations

import pytest

from penstock.runtime.wait_queue import Topic, Waiter, WaitQueue

READY: Topic = ("ready", 1)
OTHER: Topic = ("ready", 2)


@pytest.fixture
def queue() -> WaitQueue:
    return WaitQueue()


def awake(waiter: Waiter) -> bool:
    return waiter.sleep(0)


def test_a_token_wakes_the_longest_waiting_one_alone(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY)
    assert (awake(first), awake(second)) == (True, False)


def test_each_token_wakes_another_one(queue: WaitQueue) -> None:
    first, second, third = (queue.add((READY,)) for _ in range(3))
    queue.wake(READY, 2)
    assert (awake(first), awake(second), awake(third)) == (True, True, False)


def test_a_waiter_woken_twice_before_it_sleeps_is_woken_once(queue: WaitQueue) -> None:
    waiter = queue.add((READY,))
    queue.wake(READY)
    queue.requeue(waiter)
    queue.wake(READY)
    assert (awake(waiter), awake(waiter)) == (True, False)


def test_a_token_not_used_goes_to_the_next(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY)
    queue.remove(first, None)
    assert awake(second)


def test_a_token_that_was_used_wakes_nobody_else(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY)
    queue.remove(first, READY)
    assert not awake(second)


def test_a_hint_that_brought_work_is_passed_on(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY, hint=True)
    queue.remove(first, READY)
    assert awake(second)


def test_hints_wake_only_one_at_a_time(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake_all()
    queue.wake_all()
    assert (awake(first), awake(second)) == (True, False)


def test_a_hint_during_a_poll_makes_it_poll_again(queue: WaitQueue) -> None:
    waiter = queue.add((READY,))
    queue.wake(READY, hint=True)
    assert awake(waiter)
    queue.wake(READY, hint=True)  # it may have checked too early for this one
    queue.requeue(waiter)
    assert awake(waiter)
    queue.requeue(waiter)
    assert not awake(waiter)


def test_a_token_during_a_hinted_poll_goes_to_the_polling_waiter(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY, hint=True)
    assert awake(first)
    queue.wake(READY)
    queue.requeue(first)
    assert (awake(first), awake(second)) == (True, False)


def test_a_token_goes_to_the_polling_waiter_even_after_another_hint(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY, hint=True)
    queue.wake(READY, hint=True)
    assert awake(first)
    queue.wake(READY)
    queue.requeue(first)
    assert (awake(first), awake(second)) == (True, False)


def test_a_hint_during_an_empty_poll_is_passed_on_by_the_next_poll(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((READY,))
    queue.wake(READY, hint=True)
    queue.wake(READY, hint=True)
    queue.requeue(first)
    queue.remove(first, READY)
    assert awake(second)


def test_a_token_when_all_are_awake_makes_them_poll_again(queue: WaitQueue) -> None:
    waiter = queue.add((READY,))
    queue.wake(READY)
    assert awake(waiter)
    queue.wake(READY)
    queue.requeue(waiter)
    assert awake(waiter)


def test_what_a_waiter_refused_is_for_one_that_takes_more(queue: WaitQueue) -> None:
    urgent, alike, other = queue.add((READY,), 3), queue.add((READY,), 3), queue.add((READY,), 4)
    queue.wake(READY)
    assert awake(urgent)
    queue.requeue(urgent)
    assert (awake(alike), awake(other)) == (False, True)


@pytest.mark.parametrize("hint", [True, False])
def test_waiters_that_refused_keep_sleeping(queue: WaitQueue, hint: bool) -> None:
    waiters = [queue.add((READY,), 3), queue.add((READY,), 4)]
    queue.wake(READY, hint=hint)
    for waiter in waiters:
        assert awake(waiter)
        queue.requeue(waiter)
    assert [awake(waiter) for waiter in waiters] == [False, False]


def test_a_waiter_of_two_tubes_passes_on_the_token_of_the_other(queue: WaitQueue) -> None:
    both, other = queue.add((READY, OTHER)), queue.add((READY,))
    queue.wake(READY)
    queue.remove(both, OTHER)
    assert awake(other)


def test_woken_waiters_wake_whatever_they_wait_for(queue: WaitQueue) -> None:
    first, second = queue.add((READY,)), queue.add((OTHER,))
    queue.wake_waiters([second])
    assert (awake(first), awake(second)) == (False, True)


def calling(queue: WaitQueue, woken: list[str], name: str, *, there: bool = True) -> Waiter:
    """A waiter that sleeps without a thread."""
    waiter = queue.add((READY,))

    def call() -> bool:
        if there:
            woken.append(name)
        return there

    assert not waiter.call_when_woken(call)
    return waiter


def test_a_waiter_without_a_thread_is_called_once(queue: WaitQueue) -> None:
    woken: list[str] = []
    waiter = calling(queue, woken, "a")
    queue.wake(READY)
    queue.requeue(waiter)
    queue.wake(READY)
    assert woken == ["a"]
    assert waiter.call_when_woken(lambda: True), "the second wake-up is for its next sleep"


def test_a_thread_that_went_to_sleep_too_late_is_woken(queue: WaitQueue) -> None:
    waiter = queue.add((READY,))
    queue.wake(READY)
    assert waiter.call_when_woken(lambda: True)


def test_a_waiter_that_cancels_its_sleep_is_not_called(queue: WaitQueue) -> None:
    woken: list[str] = []
    calling(queue, woken, "a").call_when_woken(None)
    queue.wake(READY)
    assert woken == []


def test_a_dead_waiter_is_dropped_and_the_next_is_woken(queue: WaitQueue) -> None:
    woken: list[str] = []
    for name in "abc":
        calling(queue, woken, name, there=name == "c")
    queue.wake(READY)
    assert woken == ["c"]
    queue.wake_all()
    assert len(queue.topics) == 1


def test_with_shared_polls_a_hint_that_brought_work_is_passed_on_to_two(queue: WaitQueue) -> None:
    woken: list[str] = []
    waiters = [calling(queue, woken, name) for name in "abcdefgh"]
    queue.wake(READY, hint=True)
    queue.remove(waiters[0], READY)
    assert woken == ["a", "b", "c"]
    queue.remove(waiters[1], READY)
    queue.remove(waiters[2], READY)
    assert woken == ["a", "b", "c", "d", "e", "f", "g"]
    queue.remove(waiters[3], None)
    queue.remove(waiters[4], None)
    queue.remove(waiters[5], None)
    queue.remove(waiters[6], None)
    assert woken[7:] == ["h"]
