"""check finds nothing in a store that was only used through penstock."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.verbs import KINDS, drain, take


def test_an_empty_store_is_sound(broker: penstock.Broker) -> None:
    assert broker.check() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repair", [False, True])
def test_a_store_with_tasks_in_every_state_is_sound(
    broker: penstock.Broker, connect: Connect, clock: Clock, kind: str, repair: bool
) -> None:
    tube, theirs = broker.tube("t", kind=kind), connect().tube("t")
    tube.put_many(range(10))
    take(tube).release()
    take(theirs).bury("odd")
    take(theirs).ack()
    take(tube)
    tube.bury(7)
    tube.delete(6)
    if kind.endswith("ttl"):
        tube.put("late", delay=2, ttl=3)
        tube.put("gone", ttl=1)
    clock.advance(1)
    before = tasks(tube)
    assert broker.check(repair=repair) == []
    assert tasks(tube) == before


def test_repair_of_a_sound_store_changes_nothing(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube", utube_limit=2)
    tube.put_many(["a", "b", "c"], utube="u")
    take(tube)
    broker.check(repair=True)
    assert drain(tube) == ["b", "c"]


def test_work_of_a_lapsed_session_is_not_damage(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    broker.tube("t", kind="fifo").put("x")
    take(connect().tube("t"))
    clock.advance(20)
    assert broker.check() == []
