"""The room where blocked callers wait: tokens, hints, and what is left unused."""

from __future__ import annotations

import pytest

from penstock.waiting import Room, Topic, Waiter

READY: Topic = ("ready", 1)
OTHER: Topic = ("ready", 2)


@pytest.fixture
def room() -> Room:
    return Room()


def awake(waiter: Waiter) -> bool:
    return waiter.sleep(0)


def test_a_token_wakes_the_longest_waiting_one_alone(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY)
    assert (awake(first), awake(second)) == (True, False)


def test_each_token_wakes_another_one(room: Room) -> None:
    first, second, third = (room.enter((READY,)) for _ in range(3))
    room.wake(READY, 2)
    assert (awake(first), awake(second), awake(third)) == (True, True, False)


def test_a_waiter_woken_twice_before_it_sleeps_is_woken_once(room: Room) -> None:
    waiter = room.enter((READY,))
    room.wake(READY)
    room.again(waiter)
    room.wake(READY)
    assert (awake(waiter), awake(waiter)) == (True, False)


def test_a_token_not_used_goes_to_the_next(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY)
    room.leave(first, None)
    assert awake(second)


def test_a_token_that_was_used_wakes_nobody_else(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY)
    room.leave(first, READY)
    assert not awake(second)


def test_a_hint_that_brought_work_is_passed_on(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY, hint=True)
    room.leave(first, READY)
    assert awake(second)


def test_hints_wake_only_one_at_a_time(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake_all()
    room.wake_all()
    assert (awake(first), awake(second)) == (True, False)


def test_a_token_during_a_hinted_look_is_the_lookers(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY, hint=True)
    assert awake(first)
    room.wake(READY)
    room.again(first)
    assert (awake(first), awake(second)) == (True, False)


def test_a_token_when_all_are_awake_makes_them_look_again(room: Room) -> None:
    waiter = room.enter((READY,))
    room.wake(READY)
    assert awake(waiter)
    room.wake(READY)
    room.again(waiter)
    assert awake(waiter)


def test_a_picky_waiter_passes_on_what_it_refused(room: Room) -> None:
    picky, other = room.enter((READY,), picky=True), room.enter((READY,))
    room.wake(READY)
    room.again(picky)
    assert awake(other)


def test_a_waiter_of_two_tubes_passes_on_the_token_of_the_other(room: Room) -> None:
    both, other = room.enter((READY, OTHER)), room.enter((READY,))
    room.wake(READY)
    room.leave(both, OTHER)
    assert awake(other)


def test_roused_waiters_wake_whatever_they_wait_for(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((OTHER,))
    room.rouse([second])
    assert (awake(first), awake(second)) == (False, True)
