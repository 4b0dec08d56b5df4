"""Cancelled groups: all their tasks are removed, taken ones too; the cancel work is put once (section 3, groups)."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import KINDS, LEASED_VERBS, UTUBE_KINDS, Verb, drain, take


def cancellable(tube: penstock.Tube, items: list[object]) -> penstock.Group:
    """A group with work, end work and cancel work, not started."""
    group = tube.group("g")
    group.put_many(items)
    group.on_end("end")
    group.on_cancel("cancelled")
    return group


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("started", [False, True])
def test_cancel_removes_all_and_puts_the_cancel_work(broker: penstock.Broker, kind: str, started: bool) -> None:
    tube = broker.tube("t", kind=kind)
    group = cancellable(tube, ["a", "b", "c"])
    tube.put("plain")
    if started:
        group.start()
    group.cancel()
    assert (group.wait(0), group.progress()) == ("cancelled", penstock.Progress(3, 3))
    assert tasks(tube) == {"ready": 2, "done": 3, "total": 2}
    assert calls(tube) == {"put": 5, "delete": 3}
    assert drain(tube) == ["plain", "cancelled"]


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_cancel_removes_work_in_every_state(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = cancellable(tube, ["taken", "buried", ("delayed", {"delay": 5}), "ready"])
    group.start()
    tube.bury(2)
    take(tube)
    group.cancel()
    assert drain(tube) == ["cancelled"]
    assert tube.kick(10) == 0


@pytest.mark.parametrize("verb", LEASED_VERBS.values(), ids=LEASED_VERBS)
def test_the_holder_of_cancelled_work_has_lost_its_lease(broker: penstock.Broker, verb: Verb) -> None:
    tube = broker.tube("t", ttr=50)
    group = cancellable(tube, ["a"])
    group.start()
    task = take(tube)
    group.cancel()
    with pytest.raises(penstock.NotTaken):
        verb(tube, task)
    with pytest.raises(penstock.NotFound):
        tube.peek(1)
    assert drain(tube) == ["cancelled"]


def test_cancelled_group_work_has_the_outcome_cancelled(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put("a", address="a", reply_to="replies")
    group.cancel()
    assert tube.wait("a", 0) == penstock.Outcome("cancelled")
    assert drain(broker.tube("replies")) == [{"id": 1, "address": "a", "status": "cancelled", "error": None}]
    assert tube.put("b", address="a").id > 1


def test_a_second_cancel_and_a_late_start_do_nothing(broker: penstock.Broker, connect: Connect) -> None:
    tube = broker.tube("t")
    group, same = cancellable(tube, ["a"]), connect().tube("t").group("g")
    group.cancel()
    for call in (group.cancel, same.cancel, group.start, same.start):
        call()
    assert drain(tube) == ["cancelled"]
    assert same.wait(0) == "cancelled"


def test_a_cancel_after_the_end_does_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = cancellable(tube, [])
    group.start()
    group.cancel()
    assert (drain(tube), group.wait(0)) == (["end"], "done")


def test_an_empty_group_is_cancelled_at_once(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    group = cancellable(tube, [])
    group.cancel()
    assert (drain(tube), group.wait(0)) == (["cancelled"], "cancelled")


@pytest.mark.parametrize("kind", UTUBE_KINDS)
def test_cancelled_work_frees_its_micro_queue(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = tube.group("g")
    group.put_many(["a", "b"], utube="u")
    group.start()
    take(tube)
    tube.put("other", utube="u")
    assert tube.take(0) is None
    group.cancel()
    assert broker.check() == []
    assert drain(tube) == ["other"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("limit", [1, 3])
def test_live_work_moves_up_in_the_micro_queues_of_cancelled_work(
    broker: penstock.Broker, fair: bool, limit: int
) -> None:
    tube = broker.tube("t", kind="utube", fair=fair, utube_limit=limit)
    group = tube.group("g")
    group.put("first", utube=0)
    group.start()
    group.put_many((f"alone in {n}", {"utube": n}) for n in range(10, 15))
    for n in range(24):
        put = tube.put if n % 4 == 3 else group.put
        put(n, utube=n % 3)
    held = tube.take_many(6)
    group.cancel()
    assert broker.check() == []
    live = [int(str(task.data)) for task in held if task.data in range(3, 24, 4)]
    assert tube.ack_many(held) == [task.data in live for task in held]
    rest = [int(str(data)) for data in drain(tube)]
    assert sorted(live + rest) == [3, 7, 11, 15, 19, 23]
    per_queue = [[data for data in rest if data % 3 == queue] for queue in range(3)]
    assert per_queue == list(map(sorted, per_queue))
    assert broker.check() == []


def test_the_end_of_a_session_does_not_bring_cancelled_tasks_back(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    group = cancellable(tube, list(range(1_500)))
    group.start()
    session = broker.session()
    session.tube("t").take_many(1_500)
    group.cancel()  # only one step of them
    session.close()
    assert drain(tube) == ["cancelled"]


# large groups: the record is flipped, the tasks follow in steps

# More tasks than two steps start, and than two takes remove of a cancelled group.
LARGE = 2_500


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_group_starts_in_take_order(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = tube.group("g")
    for n in range(0, LARGE, 500):
        urgency = {"pri": LARGE - n} if kind.endswith("ttl") else {}
        group.put_many((m, {**urgency, **({"utube": m} if "utube" in kind else {})}) for m in range(n, n + 500))
    group.on_end("end")
    group.start()
    first = LARGE - 500 if kind.endswith("ttl") else 0
    assert [task.data for task in tube.take_many(10)] == list(range(first, first + 10))
    assert tasks(tube) == {"ready": LARGE - 10, "taken": 10, "total": LARGE}
    tube.release_all()
    assert tube.truncate() == LARGE
    assert drain(tube) == ["end"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_group_is_gone_for_everyone_once_it_is_cancelled(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    group = cancellable(tube, list(range(LARGE)))
    group.start()
    tube.stats()  # all tasks are ready
    held = take(tube)
    tube.put("behind")
    group.cancel()
    with pytest.raises(penstock.NotTaken):
        held.ack()
    with pytest.raises(penstock.NotFound):
        tube.peek(LARGE)
    with pytest.raises(penstock.NotFound):
        tube.delete(LARGE - 1)
    assert take(tube).data == "behind"
    assert tasks(tube) == {"ready": 1, "taken": 1, "done": LARGE, "total": 2}
    assert group.wait(0) == "cancelled"
    assert broker.check() == []


# Fields that may be stored before the number of a task's group.
EXTRAS: list[dict[str, object]] = [
    {}, {"pri": 0}, {"ttl": 60}, {"ttr": 9}, {"max_attempts": 3}, {"reply_to": "replies"}, {"address": "a"},
    {"callback": "http://localhost/"}, {"pri": 0, "ttl": 60, "ttr": 9, "reply_to": "replies", "address": "b"},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_live_work_among_cancelled_work_is_taken_in_order(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, pri=0)

    def options(group: str, n: int) -> dict[str, Any]:
        extra = dict(EXTRAS[n % len(EXTRAS)])
        extra |= {"address": f"{group}{n}"} if "address" in extra else {}
        return extra | ({"utube": f"{group}{n}"} if kind == "utubettl" else {})

    cancelled, live = tube.group("cancelled"), tube.group("live")
    cancelled.put_many((n, options("c", n)) for n in range(2_000))
    for n in range(len(EXTRAS)):
        cancelled.put("gone", **options("d", n))
        live.put(n, **options("l", n))
    live.start()
    cancelled.start()
    tube.stats()  # all tasks are ready
    cancelled.cancel()
    assert [task.data for task in tube.take_many(100)] == list(range(len(EXTRAS)))
    assert tasks(tube) == {"taken": len(EXTRAS), "done": 2_000 + len(EXTRAS), "total": len(EXTRAS)}
    assert broker.check() == []


def test_a_new_group_of_the_name_begins_while_the_old_one_is_removed(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    old = cancellable(tube, list(range(LARGE)))
    old.start()
    old.cancel()
    new = tube.group("g")
    new.put("new")
    with pytest.raises(penstock.NotFound):
        old.put("late")
    new.start()
    assert take(tube).data == "new"
    assert (old.wait(0), new.progress()) == ("cancelled", penstock.Progress(0, 1))


def test_an_address_of_cancelled_work_is_free_at_once(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", capacity=LARGE)
    group = tube.group("g")
    group.put_many((n, {"address": str(n)}) for n in range(LARGE))
    group.cancel()
    put = tube.put("new", address=str(LARGE - 1))
    assert (put.id, put.data) == (LARGE + 1, "new")
    assert tube.wait("0", 0).status == "cancelled"
    assert drain(tube) == ["new"]
