"""Kinds as data: registered by a program, run by every store, stored with the tube."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.core import kind as known
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import refused, tasks
from tests.support.verbs import KINDS, drain, take, take_all

LIFO = penstock.Kind("lifo", order=("-id",))
# As a user writes it: any collection of option names.
_OPTIONS: Any = {"ttl"}
DEADLINE = penstock.Kind("deadline", accepts=_OPTIONS, order=("expires", "id"))
RANKED = penstock.Kind("ranked", order=("rank",))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, penstock.Kind]:
    """The registered kinds, copied for each test."""
    kinds = dict(known._kinds)
    monkeypatch.setattr(known, "_kinds", kinds)
    return kinds


def test_lifo_hands_out_the_newest(broker: penstock.Broker) -> None:
    penstock.register_kind(LIFO)
    tube = broker.tube("t", kind="lifo")
    tube.put_many(["a", "b"])
    tube.put("c")
    assert drain(tube) == ["c", "b", "a"]


def test_the_oldest_ready_task_of_lifo_is_taken_last(broker: penstock.Broker, clock: Clock) -> None:
    penstock.register_kind(LIFO)
    tube = broker.tube("t", kind="lifo")
    tube.put("a")
    clock.advance(3)
    tube.put("b")
    assert broker.runtime.store.counters([tube.stored])[tube.stored.no].waits == 3


def test_a_released_task_of_lifo_is_back_at_its_old_place(broker: penstock.Broker) -> None:
    penstock.register_kind(LIFO)
    tube = broker.tube("t", kind="lifo")
    tube.put_many(["a", "b"])
    task = take(tube)
    tube.put("c")
    task.release()
    assert drain(tube) == ["c", "b", "a"]


def test_deadline_hands_out_what_expires_first_and_tasks_without_ttl_last(
    broker: penstock.Broker, clock: Clock
) -> None:
    penstock.register_kind(DEADLINE)
    tube = broker.tube("t", kind="deadline")
    tube.put("endless")
    tube.put("late", ttl=9)
    tube.put("soon", ttl=5)
    clock.advance(1)
    tube.put("sooner", ttl=3)
    tube.put("as soon", ttl=4)
    assert drain(tube) == ["sooner", "soon", "as soon", "late", "endless"]


def test_deadline_still_expires(broker: penstock.Broker, clock: Clock) -> None:
    penstock.register_kind(DEADLINE)
    tube = broker.tube("t", kind="deadline")
    tube.put_many([("a", {"ttl": 2}), "b"])
    clock.advance(2)
    assert drain(tube) == ["b"]


def test_rank_orders_by_the_number_given_at_put(broker: penstock.Broker) -> None:
    penstock.register_kind(RANKED)
    tube = broker.tube("t", kind="ranked")
    ranks = {"c": 2, "a": -1.5, "d": 2.5, "f": 2**53, "e": 1e9, "_": -(2**53), "c again": 2}
    tube.put_many([(data, {"rank": rank}) for data, rank in ranks.items()])
    tube.put("b")
    assert drain(tube) == ["_", "a", "b", "c", "c again", "d", "e", "f"]


def test_a_bad_rank_is_refused(broker: penstock.Broker) -> None:
    penstock.register_kind(RANKED)
    tube = broker.tube("t", kind="ranked")
    bad = [float("nan"), float("inf"), True, "1", 2**53 + 1, 10**400, 1e308]
    refused(bad, lambda rank: tube.put("x", rank=rank), "rank")
    assert tasks(tube) == {}


def test_due_orders_by_the_end_of_the_delay(broker: penstock.Broker, clock: Clock) -> None:
    penstock.register_kind(penstock.Kind("due", accepts=frozenset({"delay"}), order=("due", "id")))
    tube = broker.tube("t", kind="due")
    tube.put_many([("c", {"delay": 3}), ("a", {"delay": 1}), ("b", {"delay": 2})])
    clock.advance(3)
    assert drain(tube) == ["a", "b", "c"]


def test_created_orders_by_the_moment_of_the_put(broker: penstock.Broker, clock: Clock) -> None:
    penstock.register_kind(penstock.Kind("oldest", order=("created", "-id")))
    tube = broker.tube("t", kind="oldest")
    tube.put_many(["b", "a"])
    clock.advance(1)
    tube.put("c")
    assert drain(tube) == ["a", "b", "c"]


def test_two_keys_order_one_after_the_other(broker: penstock.Broker) -> None:
    penstock.register_kind(penstock.Kind("urgentlifo", accepts=frozenset({"pri"}), order=("pri", "-id")))
    tube = broker.tube("t", kind="urgentlifo")
    tube.put_many([("b", {"pri": 1}), ("a", {"pri": 1}), ("c", {"pri": 2})])
    assert drain(tube) == ["a", "b", "c"]


def test_a_custom_micro_queue_kind(broker: penstock.Broker) -> None:
    penstock.register_kind(penstock.Kind("ulifo", order=("-id",), per_utube=True))
    tube = broker.tube("t", kind="ulifo")
    tube.put_many([("u1", {"utube": "u"}), ("v1", {"utube": "v"}), ("u2", {"utube": "u"})])
    assert take_all(tube) == ["u2", "v1"]
    tube.put("u3", utube="u")
    assert tube.take(0) is None
    tube.ack(3)
    assert drain(tube) == ["u3", "u1"]


def test_a_micro_queue_kind_by_rank(broker: penstock.Broker) -> None:
    penstock.register_kind(penstock.Kind("urank", order=("rank", "id"), per_utube=True))
    tube = broker.tube("t", kind="urank")
    tube.put_many([("b", {"rank": 2}), ("a", {"rank": 1})], utube="u")
    tube.put("c", utube="v", rank=1.5)
    assert take_all(tube) == ["a", "c"]


def test_a_custom_kind_takes_only_the_options_it_accepts(broker: penstock.Broker) -> None:
    penstock.register_kind(DEADLINE)
    tube = broker.tube("t", kind="deadline")
    with pytest.raises(penstock.UnsupportedOption, match=r"(?s)(?=.*deadline)(?=.*pri)(?=.*fifottl)"):
        tube.put("x", pri=1)
    assert tasks(tube) == {}


def test_the_message_names_registered_kinds_too(broker: penstock.Broker) -> None:
    penstock.register_kind(DEADLINE)
    with pytest.raises(penstock.UnsupportedOption, match="deadline"):
        broker.tube("t", kind="fifo").put("x", ttl=1)


def test_a_program_that_never_registered_the_kind_can_use_the_tube(
    broker: penstock.Broker, connect: Connect, registry: dict[str, penstock.Kind]
) -> None:
    penstock.register_kind(LIFO)
    broker.tube("t", kind="lifo").put_many(["a", "b"])
    del registry["lifo"]
    theirs = connect()
    theirs.tube("t").put("c")
    assert [(info.name, info.kind) for info in theirs.tubes()] == [("t", "lifo")]
    assert drain(theirs.tube("t")) == ["c", "b", "a"]


def test_the_stored_declaration_counts_and_not_the_registered_one(
    broker: penstock.Broker, connect: Connect, registry: dict[str, penstock.Kind]
) -> None:
    penstock.register_kind(LIFO)
    broker.tube("t", kind="lifo").put_many(["a", "b"])
    registry["lifo"] = penstock.Kind("lifo", order=("id",))
    assert drain(connect().tube("t")) == ["b", "a"]


@pytest.mark.parametrize("name", [*KINDS, "lifo"])
def test_a_kind_is_registered_once(name: str) -> None:
    penstock.register_kind(LIFO)
    with pytest.raises(penstock.BadValue, match=name):
        penstock.register_kind(penstock.Kind(name))


@pytest.mark.parametrize("kind", [None, "fifo", {"name": "x"}, penstock.Kind])
def test_only_a_kind_is_registered(kind: penstock.Kind) -> None:
    with pytest.raises(penstock.BadValue):
        penstock.register_kind(kind)
