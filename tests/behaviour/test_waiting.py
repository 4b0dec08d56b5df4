"""Blocked calls in real time: what wakes them, in which order, and when they time out (section 4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import penstock
from penstock.core.values import MAX_SECONDS
from penstock.testing import Clock
from tests.support.inspection import all_asleep, calls, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import take

PATIENCE = 30.0
pytestmark = pytest.mark.usefixtures("unscanned")


def blocked(broker: penstock.Broker, tube: penstock.Tube, timeout: float = PATIENCE) -> Future[penstock.Task | None]:
    """A take that is already blocked, in another thread."""
    before = waiters(broker, tube.name)
    future = begin(lambda: tube.take(timeout))
    until(lambda: future.done() or waiters(broker, tube.name) > before)
    if future.done():
        future.result()  # raises what ended the take
    return future


def data_of(future: Future[penstock.Task | None]) -> object:
    task = future.result(timeout=PATIENCE)
    return task and task.data


def test_a_taker_is_woken_by_a_put_of_another_thread(live: penstock.Broker) -> None:
    tube = live.tube("t")
    waiting = blocked(live, tube)
    tube.put("x")
    assert data_of(waiting) == "x"


def test_a_taker_is_woken_by_another_broker_of_the_process(live: penstock.Broker, store_url: str) -> None:
    waiting = blocked(live, live.tube("t"))
    with penstock.connect(store_url) as other:
        other.tube("t").put("x")
        assert data_of(waiting) == "x"


def test_a_taker_may_wait_for_a_century(live: penstock.Broker) -> None:
    tube = live.tube("t")
    waiting = blocked(live, tube, MAX_SECONDS)
    tube.put("x")
    assert data_of(waiting) == "x"


def test_a_taker_gets_a_delayed_task_when_it_is_due(live: penstock.Broker) -> None:
    tube = live.tube("t")
    began = time.monotonic()
    tube.put("x", delay=0.2)
    task = tube.take(PATIENCE)
    assert task is not None
    assert task.data == "x"
    assert time.monotonic() - began >= 0.15


def test_a_blocked_taker_is_woken_for_a_delayed_task_put_later(live: penstock.Broker) -> None:
    tube = live.tube("t")
    waiting = blocked(live, tube)
    began = time.monotonic()
    tube.put("x", delay=0.2)
    assert data_of(waiting) == "x"
    assert time.monotonic() - began >= 0.15


def test_a_taker_gets_a_task_whose_lease_lapses(live: penstock.Broker) -> None:
    tube = live.tube("t")
    tube.put("x", ttr=0.2)
    with live.session() as session:
        began = time.monotonic()
        take(session.tube("t"))
        task = tube.take(PATIENCE)
        assert task is not None
        assert task.attempts == 2
        assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize(
    ("free", "data"),
    [
        (lambda tube, task: task.ack(), "b"),
        (lambda tube, task: task.fail("broken"), "b"),
        (lambda tube, task: task.bury("odd"), "b"),
        (lambda tube, task: tube.delete(task.id), "b"),
        (lambda tube, task: task.release(), "a"),
    ],
    ids=["ack", "fail", "bury", "delete", "release"],
)
def test_a_taker_is_woken_when_the_micro_queue_frees(
    live: penstock.Broker, free: Callable[[penstock.Tube, penstock.Task], object], data: str
) -> None:
    tube = live.tube("t", kind="utube")
    tube.put_many(["a", "b"], utube="u")
    task = take(tube)
    with live.session() as session:
        waiting = blocked(live, session.tube("t"))
        free(tube, task)
        assert data_of(waiting) == data


@pytest.mark.parametrize("wake", ["release", "kick", "resume", "session end", "release_all"])
def test_a_taker_is_woken_by_whatever_makes_a_task_ready(live: penstock.Broker, wake: str) -> None:
    tube, holder = live.tube("t"), live.session()
    tube.put("x")
    task = take(holder.tube("t")) if wake != "resume" else None
    if wake == "kick":
        tube.bury(1)
    if wake == "resume":
        tube.pause()
    waiting = blocked(live, tube)
    if wake == "release" and task:
        task.release()
    if wake == "kick":
        tube.kick()
    if wake == "resume":
        tube.resume()
    if wake == "session end":
        holder.close()
    if wake == "release_all":
        tube.release_all()
    assert data_of(waiting) == "x"


def test_the_longest_waiting_is_woken_first(live: penstock.Broker) -> None:
    tube, sessions = live.tube("t"), [live.session() for _ in range(3)]
    waiting = [blocked(live, session.tube("t")) for session in sessions]
    found = []
    for number, future in enumerate(waiting):
        until(lambda: all_asleep(live))  # one that still looks for the task before may be passed over for the next
        tube.put(number)
        found.append(data_of(future))
    assert found == [0, 1, 2]


def test_one_put_wakes_one_of_many(live: penstock.Broker) -> None:
    tube, sessions = live.tube("t"), [live.session() for _ in range(3)]
    waiting = [blocked(live, session.tube("t")) for session in sessions]
    tube.put_many(["a", "b", "c"])
    assert sorted(str(data_of(future)) for future in waiting) == ["a", "b", "c"]
    assert calls(tube) == {"put": 3, "take": 3}


def test_take_returns_none_at_its_timeout(live: penstock.Broker) -> None:
    began = time.monotonic()
    assert live.tube("t").take(0.05) is None
    assert time.monotonic() - began >= 0.05


def test_take_many_returns_nothing_at_its_timeout(live: penstock.Broker) -> None:
    assert live.tube("t").take_many(2, 0.05) == []


def test_take_many_does_not_wait_for_more_than_there_is(live: penstock.Broker) -> None:
    tube = live.tube("t")
    waiting = begin(lambda: tube.take_many(5, PATIENCE))
    until(lambda: waiting.done() or waiters(live, "t") == 1)
    tube.put_many(["a", "b"])
    assert [task.data for task in waiting.result(timeout=PATIENCE)] == ["a", "b"]


def test_closing_the_session_ends_its_blocked_take_with_none(live: penstock.Broker) -> None:
    tube, session = live.tube("t"), live.session()
    waiting = blocked(live, session.tube("t"))
    session.close()
    assert waiting.result(timeout=PATIENCE / 2) is None
    tube.put("x")
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_closing_the_broker_ends_its_blocked_takes_with_none(live: penstock.Broker, store_url: str) -> None:
    other = penstock.connect(store_url)
    live.tube("t")
    one = blocked(live, other.tube("t"))
    two = blocked(live, other.session().tube("t"))
    other.close()
    assert (one.result(timeout=PATIENCE / 2), two.result(timeout=PATIENCE / 2)) == (None, None)


def test_a_taker_of_several_tubes_is_woken_by_any(live: penstock.Broker) -> None:
    live.tube("a")
    second = live.tube("b")
    waiting = begin(lambda: live.take(["a", "b"], timeout=PATIENCE))
    until(lambda: waiting.done() or (waiters(live, "a"), waiters(live, "b")) == (1, 1))
    second.put("x")
    assert data_of(waiting) == "x"


def test_a_waiter_is_shown_while_it_waits(live: penstock.Broker) -> None:
    tube = live.tube("t")
    waiting = blocked(live, tube)
    tube.put("x")
    waiting.result(timeout=PATIENCE)
    until(lambda: waiters(live, "t") == 0)


def test_a_caller_that_leaves_while_something_is_due_is_unregistered(broker: penstock.Broker, clock: Clock) -> None:
    tube, store, session = broker.tube("t"), broker.runtime.store, broker.session_handle
    tube.pause()
    tube.put("later", delay=5)
    session.join()
    assert store.take([tube.stored], 1, session.handle, blocked="register").records == []
    assert waiters(broker, "t") == 1
    clock.advance(10)
    assert store.take([tube.stored], 1, session.handle, blocked="unregister").records == []
    assert waiters(broker, "t") == 0


def test_drop_refuses_while_someone_waits(live: penstock.Broker) -> None:
    tube = live.tube("mail")
    waiting = blocked(live, tube)
    with pytest.raises(penstock.TubeBusy, match="tube mail has takers waiting in take: let them"):
        tube.drop()
    tube.put("x")
    task = waiting.result(timeout=PATIENCE)
    assert task is not None
    task.ack()
    tube.drop()
    assert live.tubes() == []


@pytest.mark.parametrize("leave", ["ack", "delete", "truncate"])
def test_a_put_waits_for_room(live: penstock.Broker, leave: str) -> None:
    tube = live.tube("t", capacity=1)
    tube.put("first")
    task = take(tube)
    putting = begin(lambda: tube.put("second", timeout=PATIENCE))
    if leave == "ack":
        task.ack()
    if leave == "delete":
        tube.delete(1)
    if leave == "truncate":
        tube.truncate()
    assert putting.result(timeout=PATIENCE).data == "second"


def test_put_many_waits_for_room_for_all(live: penstock.Broker) -> None:
    tube = live.tube("t", capacity=2)
    tube.put_many(["a", "b"])
    first, second = tube.take_many(2)
    putting = begin(lambda: tube.put_many(["c", "d"], timeout=PATIENCE))
    first.ack()
    assert tasks(tube) == {"taken": 1, "done": 1, "total": 1}
    second.ack()
    assert [task.data for task in putting.result(timeout=PATIENCE)] == ["c", "d"]


def test_a_put_gives_up_at_its_timeout(live: penstock.Broker) -> None:
    tube = live.tube("t", capacity=1)
    tube.put("first")
    began = time.monotonic()
    with pytest.raises(penstock.TubeFull):
        tube.put("second", timeout=0.05)
    assert time.monotonic() - began >= 0.05
    assert tasks(tube) == {"ready": 1, "total": 1}


def test_a_waiting_put_reports_what_became_due(live: penstock.Broker) -> None:
    tube, seen = live.tube("t", capacity=1), list[tuple[int, str]]()
    tube.put("first", delay=0.1)
    tube.on_change(lambda task, event: seen.append((task.id, event)))
    putting = begin(lambda: tube.put("second", timeout=PATIENCE))
    until(lambda: seen == [(1, "delay")])
    tube.delete(1)
    assert putting.result(timeout=PATIENCE).data == "second"


def test_a_put_waits_for_a_ttl_to_make_room(live: penstock.Broker) -> None:
    tube = live.tube("t", capacity=1)
    tube.put("first", ttl=0.2)
    assert tube.put("second", timeout=PATIENCE).data == "second"


def test_without_deadlines_no_next_deadline_is_reported(broker: penstock.Broker) -> None:
    """Otherwise a call that waits for an outcome would poll without pause."""
    tube = broker.tube("t")
    tube.put("x")
    advanced = broker.runtime.store.advance(tube.stored)
    assert (advanced.more, advanced.wait_ms) == (False, None)
