"""utube_limit: how many tasks of one micro-queue may be taken at once."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.verbs import UTUBE_KINDS, take, take_all

both_kinds = pytest.mark.parametrize("kind", UTUBE_KINDS)


@both_kinds
def test_as_many_as_the_limit_are_taken_at_once(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=2)
    tube.put_many(["a", "b", "c", ("d", {"utube": "v"})], utube="u")
    assert take_all(tube) == ["a", "b", "d"]


@both_kinds
def test_each_task_that_leaves_frees_one_place(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=2)
    tube.put_many(["a", "b", "c", "d"], utube="u")
    _, second = tube.take_many(2)
    second.ack()
    assert take_all(tube) == ["c"]


@both_kinds
def test_a_released_task_comes_before_those_that_waited(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, utube_limit=2)
    tube.put_many(["a", "b", "c", "d"], utube="u")
    first, second = tube.take_many(2)
    first.release()
    second.ack()
    assert take_all(tube) == ["a", "c"]


def test_a_more_urgent_arrival_demotes_the_last_head(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl", utube_limit=2)
    tube.put_many([("a", {"pri": 5}), ("b", {"pri": 5}), ("urgent", {"pri": 0})], utube="u")
    assert take_all(tube) == ["urgent", "a"]


def test_a_more_urgent_arrival_takes_the_only_place_left(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utubettl", utube_limit=2)
    tube.put_many(["a", "b"], utube="u", pri=5)
    take(tube)
    tube.put("urgent", utube="u", pri=0)
    assert take_all(tube) == ["urgent"]


def test_a_session_end_frees_all_its_places(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t", kind="utube", utube_limit=2), connect()
    tube.put_many(["a", "b", "c"], utube="u")
    theirs.tube("t").take_many(2)
    theirs.close()
    assert take_all(tube) == ["a", "b"]


def test_lapsed_leases_free_their_places(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="utubettl", utube_limit=2, ttr=3)
    tube.put_many(["a", "b", "c"], utube="u")
    tube.take_many(2)
    clock.advance(3)
    assert take_all(tube) == ["a", "b"]
