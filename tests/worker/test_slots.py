"""How much runs at once: priority limits, and slots that waiting handlers free."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import penstock
from penstock.app.app import App
from penstock.worker.settings import Settings, check_limits, make_settings
from penstock.worker.slots import Slots
from penstock.worker.worker import Worker
from tests.support.threads import until
from tests.worker import jobs
from tests.worker.conftest import Start

Receive = Callable[[], object]
Send = Callable[[str], None]


def test_a_less_urgent_priority_never_has_a_larger_limit() -> None:
    assert check_limits({5: 4, 0: 16, 9: 4}) == ((0, 16), (5, 4), (9, 4))
    with pytest.raises(penstock.BadValue, match="limit 5=8 is larger than 0=4 of the more urgent priority 0"):
        check_limits({0: 4, 5: 8})


@pytest.mark.parametrize(
    ("limits", "message"),
    [({0: 0}, "limit 0"), ({-1: 3}, "priority -1"), ({0: True}, "limit True"), ({1.5: 2}, "priority 1.5")],
)
def test_bad_limits_are_refused(limits: dict[int, int], message: str) -> None:
    with pytest.raises(penstock.BadValue, match=message):
        check_limits(limits)


def test_without_a_concurrency_there_is_room_for_the_largest_limit() -> None:
    assert make_settings(limits={0: 40}).concurrency == 40
    assert make_settings(limits={0: 3}).concurrency == 16
    assert make_settings(limits={0: 40}, concurrency=8).concurrency == 8


def test_only_priorities_that_may_start_get_room() -> None:
    slots = Slots(16, ((0, 8), (5, 4), (9, 1)))
    assert slots.room(0) == (1, None)
    assert slots.room(1) == (3, 8)
    assert slots.room(4) == (4, 4)
    assert slots.room(8) == (0, None)
    unlimited = Slots(2, ((5, 1),))
    assert unlimited.room(0) == (1, None)
    assert unlimited.room(1) == (1, 4)


def test_a_handler_that_resumes_gets_the_next_slot() -> None:
    slots = Slots(1)
    freed = threading.Event()
    slots.on_free.append(freed.set)
    assert slots.acquire()
    slots.give_up_slot()
    assert freed.is_set()
    assert slots.acquire()
    back = threading.Event()
    slots.regain_slot(back.set)
    assert (slots.wanted, back.is_set(), slots.acquire(), slots.free()) == (True, False, False, 0)
    slots.release()
    assert (back.is_set(), slots.running, slots.waiting) == (True, 1, 0)
    slots.release()
    assert slots.running == 0


def test_urgent_work_gets_slots_that_less_urgent_work_may_not_use(
    app: App, start: Start, receive: Receive, send: Send
) -> None:
    start("--concurrency", "3", "--limit", "0=3", "--limit", "5=2")
    for word in ("a", "b", "c"):
        jobs.hold.options(pri=5).put(word)
    assert {str(receive()), str(receive())} == {f"['began', '{word}', {pid(app)}]" for word in ("a", "b")}
    jobs.hold.options(pri=0).put("urgent")
    assert list_of(receive())[1] == "urgent"
    assert app.broker.tube("slow").stats().tasks.ready == 1  # "c", which may not start while two or more run
    send("a")
    until(lambda: app.broker.tube("slow").stats().calls.ack == 1)
    assert app.broker.tube("reported").take(0.3) is None
    send("urgent")
    assert list_of(receive())[1] == "c"
    send("b")
    send("c")
    until(lambda: app.broker.tube("slow").stats().tasks.total == 0)


def pid(app: App) -> int:
    return next(session.pid for session in app.broker.sessions() if session.held)


def list_of(reported: object) -> list[object]:
    assert isinstance(reported, list)
    return reported


def test_limits_need_tubes_that_are_ordered_by_priority(app: App) -> None:
    app.broker.tube("aged", aging=10)
    with pytest.raises(penstock.UnsupportedOption, match="aged"):
        Worker(app, Settings(tubes=("aged",), limits=((0, 4),)))


def test_a_tube_that_leases_nothing_is_refused(app: App) -> None:
    app.broker.tube("log", kind="reliable")
    with pytest.raises(penstock.UnsupportedOption, match="tube log is of kind reliable"):
        Worker(app, Settings(tubes=("log",)))


def test_a_worker_without_tubes_is_refused(url: str) -> None:
    empty = penstock.App(url)
    with pytest.raises(penstock.BadValue, match="the worker has no tubes"):
        Worker(empty)
    empty.close()
