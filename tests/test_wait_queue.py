"""The room where blocked callers wait: tokens, hints, and what is left unused."""

from __future__ import annotations

import pytest

from penstock.runtime.wait_queue import Room, Topic, Waiter

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


def test_a_hint_during_a_look_makes_it_look_again(room: Room) -> None:
    waiter = room.enter((READY,))
    room.wake(READY, hint=True)
    assert awake(waiter)
    room.wake(READY, hint=True)  # its look may have been too early for this one
    room.again(waiter)
    assert awake(waiter)
    room.again(waiter)
    assert not awake(waiter)


def test_a_token_during_a_hinted_look_is_the_lookers(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY, hint=True)
    assert awake(first)
    room.wake(READY)
    room.again(first)
    assert (awake(first), awake(second)) == (True, False)


def test_a_token_is_the_lookers_also_when_it_was_hinted_again(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY, hint=True)
    room.wake(READY, hint=True)
    assert awake(first)
    room.wake(READY)
    room.again(first)
    assert (awake(first), awake(second)) == (True, False)


def test_a_hint_during_a_look_that_found_nothing_is_passed_on_by_the_next_look(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((READY,))
    room.wake(READY, hint=True)
    room.wake(READY, hint=True)
    room.again(first)
    room.leave(first, READY)
    assert awake(second)


def test_a_token_when_all_are_awake_makes_them_look_again(room: Room) -> None:
    waiter = room.enter((READY,))
    room.wake(READY)
    assert awake(waiter)
    room.wake(READY)
    room.again(waiter)
    assert awake(waiter)


def test_what_a_waiter_refused_is_for_one_that_takes_more(room: Room) -> None:
    urgent, alike, other = room.enter((READY,), 3), room.enter((READY,), 3), room.enter((READY,), 4)
    room.wake(READY)
    assert awake(urgent)
    room.again(urgent)
    assert (awake(alike), awake(other)) == (False, True)


@pytest.mark.parametrize("hint", [True, False])
def test_waiters_that_refused_sleep_on(room: Room, hint: bool) -> None:
    waiters = [room.enter((READY,), 3), room.enter((READY,), 4)]
    room.wake(READY, hint=hint)
    for waiter in waiters:
        assert awake(waiter)
        room.again(waiter)
    assert [awake(waiter) for waiter in waiters] == [False, False]


def test_a_waiter_of_two_tubes_passes_on_the_token_of_the_other(room: Room) -> None:
    both, other = room.enter((READY, OTHER)), room.enter((READY,))
    room.wake(READY)
    room.leave(both, OTHER)
    assert awake(other)


def test_roused_waiters_wake_whatever_they_wait_for(room: Room) -> None:
    first, second = room.enter((READY,)), room.enter((OTHER,))
    room.rouse([second])
    assert (awake(first), awake(second)) == (False, True)


def calling(room: Room, woken: list[str], name: str, *, there: bool = True) -> Waiter:
    """A waiter that sleeps without a thread."""
    waiter = room.enter((READY,))

    def call() -> bool:
        if there:
            woken.append(name)
        return there

    assert not waiter.call_when_woken(call)
    return waiter


def test_a_sleeper_without_a_thread_is_called_once(room: Room) -> None:
    woken: list[str] = []
    waiter = calling(room, woken, "a")
    room.wake(READY)
    room.again(waiter)
    room.wake(READY)
    assert woken == ["a"]
    assert waiter.call_when_woken(lambda: True), "the second wake-up is for its next sleep"


def test_a_sleeper_that_went_to_sleep_too_late_is_told(room: Room) -> None:
    waiter = room.enter((READY,))
    room.wake(READY)
    assert waiter.call_when_woken(lambda: True)


def test_a_sleeper_that_thinks_better_of_it_is_not_called(room: Room) -> None:
    woken: list[str] = []
    calling(room, woken, "a").call_when_woken(None)
    room.wake(READY)
    assert woken == []


def test_a_sleeper_that_is_gone_is_dropped_and_the_next_is_woken(room: Room) -> None:
    woken: list[str] = []
    for name in "abc":
        calling(room, woken, name, there=name == "c")
    room.wake(READY)
    assert woken == ["c"]
    room.wake_all()
    assert len(room) == 1


def test_where_looks_are_shared_a_hint_that_brought_work_is_passed_on_to_two(room: Room) -> None:
    woken: list[str] = []
    waiters = [calling(room, woken, name) for name in "abcdefgh"]
    room.wake(READY, hint=True)
    room.leave(waiters[0], READY)
    assert woken == ["a", "b", "c"]
    room.leave(waiters[1], READY)
    room.leave(waiters[2], READY)
    assert woken == ["a", "b", "c", "d", "e", "f", "g"]
    room.leave(waiters[3], None)
    room.leave(waiters[4], None)
    room.leave(waiters[5], None)
    room.leave(waiters[6], None)
    assert woken[7:] == ["h"]
