"""Addresses: one task per address and tube at a time (section 3, addresses and outcomes)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, facts, refused, tasks
from tests.support.threads import begin
from tests.support.verbs import KINDS, TIMED_KINDS, UTUBE_KINDS, drain, take

BAD_ADDRESSES: list[Any] = [
    "",
    " ",
    "\t",
    "a\0",
    "a\n",
    "a\u200b",
    "\u202ea",
    "a\ud800",
    "x" * 201,
    "é" * 101,
    5,
    True,
    b"a",
    ["a"],
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_has_its_address_as_long_as_it_lives(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    put = tube.put("x", address="order 7/é")
    assert (put.address, take(tube).address, tube.peek(put.id).address, tube.tasks()[0].address) == ("order 7/é",) * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
def test_a_second_task_of_an_address_is_refused_whatever_the_first_does(
    broker: penstock.Broker, connect: Connect, kind: str, state: str
) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x", address="a")
    if state != "ready":
        task = take(tube)
        if state == "buried":
            task.bury()
    before = everything(tube)
    with pytest.raises(penstock.DuplicateAddress, match="a"):
        connect().tube("t").put("y", address="a")
    assert everything(tube) == before


def test_a_delayed_task_holds_its_address(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a", delay=5)
    with pytest.raises(penstock.DuplicateAddress):
        tube.put("y", address="a", on_duplicate="error")


def test_an_address_belongs_to_one_tube(broker: penstock.Broker) -> None:
    one, other = broker.tube("one"), broker.tube("other")
    one.put("x", address="a")
    other.put("y", address="a")
    one.put("z", address="A")
    assert (drain(one), drain(other)) == (["x", "z"], ["y"])


@pytest.mark.parametrize("end", ["ack", "fail", "delete", "truncate", "ttl"])
def test_an_address_is_free_when_its_task_has_left(broker: penstock.Broker, clock: Clock, end: str) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a", ttl=1)
    if end in ("ack", "fail"):
        task = take(tube)
        task.ack() if end == "ack" else task.fail("broken")
    elif end == "delete":
        tube.delete(1)
    elif end == "truncate":
        tube.truncate()
    else:
        clock.advance(1)
    assert tube.put("y", address="a").id > 1
    assert drain(tube) == ["y"]


def test_the_expired_holder_of_an_address_is_counted_when_it_makes_way(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", capacity=1)
    tube.put("x", address="a", ttl=1)
    clock.advance(1)
    tube.put("y", address="a")
    assert (tasks(tube), calls(tube)) == ({"ready": 1, "done": 1, "total": 1}, {"put": 2, "ttl": 1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
def test_ignore_returns_the_existing_task(broker: penstock.Broker, kind: str, state: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x", address="a")
    if state != "ready":
        task = take(tube)
        if state == "buried":
            task.bury("odd")
    there, before = facts(tube.peek(1)), everything(tube)
    assert facts(tube.put("y", address="a", on_duplicate="ignore")) == there
    assert everything(tube) == before


def test_ignore_of_a_free_address_puts(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    assert tube.put("x", address="a", on_duplicate="ignore").id == 1
    assert drain(tube) == ["x"]


def test_ignore_into_a_full_tube_needs_no_room(broker: penstock.Broker) -> None:
    tube = broker.tube("t", capacity=1)
    tube.put("x", address="a")
    assert tube.put("y", address="a", on_duplicate="ignore").data == "x"
    assert tube.put("y", address="a", on_duplicate="replace").data == "y"
    with pytest.raises(penstock.TubeFull):
        tube.put("z", address="b", on_duplicate="ignore")


@pytest.mark.parametrize("kind", KINDS)
def test_replace_sets_new_data_and_keeps_the_id(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x", address="a")
    tube.put("other")
    replaced = tube.put({"new": [1]}, address="a", on_duplicate="replace")
    assert (replaced.id, replaced.data, str(replaced.status), replaced.address) == (1, {"new": [1]}, "r", "a")
    assert calls(tube) == {"put": 2}
    assert drain(tube) == [{"new": [1]}, "other"]  # in its old place, and once


@pytest.mark.parametrize("kind", TIMED_KINDS)
def test_replace_sets_new_pri_delay_and_ttl(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("x", address="a", pri=5, ttl=100, ttr=7)
    tube.put("middle", pri=3)
    clock.advance(1)
    replaced = tube.put("y", address="a", on_duplicate="replace", pri=1, ttl=10, delay=2, ttr=99)
    assert (replaced.pri, replaced.status, replaced.due, replaced.expires) == (
        1, "~", clock.seconds + 2, clock.seconds + 12,
    )  # fmt: skip
    assert tasks(tube) == {"ready": 1, "delayed": 1, "total": 2}
    clock.advance(2)
    task = take(tube)
    assert (task.data, task.due) == ("y", clock.seconds + 7)  # with its old ttr


def test_replace_without_options_sets_the_defaults(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttl=50)
    tube.put("x", address="a", pri=5, ttl=3, delay=4)
    replaced = tube.put("y", address="a", on_duplicate="replace")
    assert (replaced.pri, replaced.status, replaced.expires) == (0, "r", clock.seconds + 50)
    assert tasks(tube) == {"ready": 1, "total": 1}


@pytest.mark.parametrize("state", ["taken", "buried"])
def test_a_taken_or_buried_task_is_not_replaced(broker: penstock.Broker, state: str) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    task = take(tube)
    if state == "buried":
        task.bury("odd")
    before = everything(tube)
    with pytest.raises(penstock.DuplicateAddress, match=state):
        tube.put("y", address="a", on_duplicate="replace")
    assert everything(tube) == before


def test_a_released_task_is_replaced_and_its_lease_keeps_growing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    first = take(tube)
    first.release()
    tube.put("y", address="a", on_duplicate="replace")
    task = take(tube)
    assert (task.data, task.attempts) == ("y", 2)
    assert task.lease > first.lease


@pytest.mark.parametrize("kind", UTUBE_KINDS)
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("which", ["head", "waiting"])
def test_replace_keeps_a_micro_queue_consistent(broker: penstock.Broker, kind: str, fair: bool, which: str) -> None:
    tube = broker.tube("t", kind=kind, fair=fair)
    tube.put("head", address="head", utube="u")
    tube.put("waiting", address="waiting", utube="u")
    tube.put("new", address=which, on_duplicate="replace")
    assert broker.check() == []
    assert drain(tube) == (["new", "waiting"] if which == "head" else ["head", "new"])


@pytest.mark.parametrize(("pris", "expected"), [((5, 3, 1), ["c", "b", "a"]), ((1, 3, 5), ["a", "b", "c"])])
def test_replace_moves_a_task_inside_its_micro_queue(
    broker: penstock.Broker, pris: tuple[int, int, int], expected: list[str]
) -> None:
    tube = broker.tube("t", kind="utubettl")
    for name in "abc":
        tube.put(name, address=name, utube="u", pri=4)
    for name, pri in zip("abc", pris, strict=True):
        tube.put(name, address=name, on_duplicate="replace", pri=pri)
        assert broker.check() == []
    assert drain(tube) == expected


def test_replace_with_delay_frees_the_micro_queue(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl")
    tube.put("a", address="a", utube="u")
    tube.put("b", utube="u")
    tube.put("later", address="a", on_duplicate="replace", delay=2)
    assert broker.check() == []
    assert take(tube).data == "b"
    clock.advance(2)
    assert tube.take(0) is None  # b holds the micro-queue


def test_put_many_with_a_duplicate_stores_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("there", address="b")
    before = everything(tube)
    for items in (
        [("x", {"address": "a"}), ("y", {"address": "a"})],
        [("x", {"address": "a"}), ("y", {"address": "b"})],
    ):
        with pytest.raises(penstock.DuplicateAddress):
            tube.put_many(["plain", *items])
        assert everything(tube) == before
    assert tube.put("next").id == 2


def test_a_large_put_with_an_address_in_use_stores_nothing_or_the_others(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    there = tube.put("there", address="a150")
    items = [(number, {"address": f"a{number}"}) for number in range(200)]
    before = everything(tube)
    with pytest.raises(penstock.DuplicateAddress, match="a150"):
        tube.put_many(items)
    assert everything(tube) == before
    put = tube.put_many(items, on_duplicate="ignore")
    assert (put[150].id, len({task.id for task in put}), len(tube)) == (there.id, 200, 200)
    assert drain(tube) == ["there", *(number for number in range(200) if number != 150)]


def test_put_many_treats_its_tasks_one_after_the_other(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("there", address="b")
    put = tube.put_many(
        [
            ("1", {"address": "a"}),
            ("2", {"address": "a", "on_duplicate": "ignore"}),
            ("3", {"address": "b", "on_duplicate": "replace", "pri": 7}),
            ("4", {"address": "b", "on_duplicate": "ignore"}),
            ("5", {"address": "c"}),
            ("6", {"address": "c", "on_duplicate": "replace"}),
            "7",
        ]
    )
    assert [(task.id, task.data) for task in put] == [
        (2, "1"), (2, "1"), (1, "3"), (1, "3"), (3, "6"), (3, "6"), (4, "7"),
    ]  # fmt: skip
    assert drain(tube) == ["1", "6", "7", "3"]


@pytest.mark.parametrize("on_duplicate", ["replace", "ignore"])
def test_a_replaced_delay_is_reported_as_a_put(broker: penstock.Broker, on_duplicate: str) -> None:
    tube, seen = broker.tube("t"), []
    tube.put("x", address="a", delay=5)
    tube.on_change(lambda task, event: seen.append((event, task.data)))
    tube.put("y", address="a", on_duplicate=on_duplicate)
    assert seen == ([("put", "y")] if on_duplicate == "replace" else [])


def test_a_bad_address_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    refused(BAD_ADDRESSES, lambda address: tube.put("x", address=address), "address")
    refused(BAD_ADDRESSES, lambda address: tube.put_many(["x", ("y", {"address": address})]), "address")
    refused(BAD_ADDRESSES, lambda address: tube.wait(address, 0), "address")
    assert (tasks(tube), calls(tube)) == ({}, {})


def test_a_bad_on_duplicate_is_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    bad = ["", "Error", "skip", 1, True]
    refused(bad, lambda on_duplicate: tube.put("x", address="a", on_duplicate=on_duplicate), "on_duplicate")
    assert (tasks(tube), calls(tube)) == ({}, {})


@pytest.mark.parametrize("on_duplicate", ["error", "ignore", "replace"])
def test_threads_that_race_for_an_address_put_it_once(live: penstock.Broker, on_duplicate: str) -> None:
    tube = live.tube("t")

    def race(number: int) -> list[int]:
        ids = []
        for round in range(20):
            try:
                ids.append(tube.put(number, address=f"a{round}", on_duplicate=on_duplicate).id)
            except penstock.DuplicateAddress:
                pass
        return ids

    racing = [begin(lambda number=number: race(number)) for number in range(4)]  # type: ignore[misc]
    ids = Counter(id for future in racing for id in future.result(timeout=30))
    assert set(ids.values()) == {1 if on_duplicate == "error" else 4}
    assert len(drain(tube)) == len(ids) == 20
