"""stats: exact counters that belong to the store (rule 15)."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import KINDS, take


def test_a_new_tube_counts_nothing(broker: penstock.Broker) -> None:
    stats = broker.tube("t").stats()
    counted = stats.tasks
    assert (counted.ready, counted.taken, counted.delayed, counted.buried, counted.done, counted.total) == (0,) * 6
    assert calls(broker.tube("t")) == {}


def test_every_state_is_counted_and_total_excludes_done(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c", "d", "e", ("f", {"delay": 5})])
    take(tube).ack()
    take(tube)
    tube.bury(3)
    assert tasks(tube) == {"ready": 2, "taken": 1, "delayed": 1, "buried": 1, "done": 1, "total": 5}


@pytest.mark.parametrize("kind", KINDS)
def test_calls_count_tasks(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(range(5))
    tube.bury(4)
    tube.bury(5)
    tube.kick(9)
    take(tube).release()
    take(tube).ack()
    take(tube).fail("broken")
    tube.delete(3)
    assert calls(tube) == {
        "put": 5, "bury": 2, "kick": 2, "take": 3, "release": 1, "ack": 1, "fail": 1, "delete": 1,
    }  # fmt: skip
    assert tasks(tube) == {"ready": 2, "done": 3, "total": 2}


def test_take_many_and_ack_many_count_each_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(range(4))
    tube.ack_many(tube.take_many(3))
    assert calls(tube) == {"put": 4, "take": 3, "ack": 3}


def test_applied_deadlines_are_counted(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put_many([("a", {"ttl": 1}), ("b", {"delay": 1}), ("c", {"ttr": 1, "pri": 0})], pri=1)
    assert take(tube).data == "c"
    clock.advance(1)
    assert calls(tube) == {"put": 3, "take": 1, "ttl": 1, "delay": 1, "ttr": 1}
    assert tasks(tube) == {"ready": 2, "done": 1, "total": 2}


def test_truncate_counts_as_delete(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(range(3))
    take(tube)
    tube.truncate()
    assert calls(tube) == {"put": 3, "take": 1, "delete": 3}
    assert tasks(tube) == {"done": 3}


def test_refused_calls_are_not_counted(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    with pytest.raises(penstock.NotTaken):
        tube.ack(1)
    with pytest.raises(penstock.NotFound):
        tube.delete(2)
    assert calls(tube) == {"put": 1}


def test_every_broker_reads_the_same_counters(broker: penstock.Broker, connect: Connect) -> None:
    mine, theirs = broker.tube("t"), connect().tube("t")
    mine.put("a")
    theirs.put("b")
    take(mine).ack()
    assert calls(mine) == calls(theirs) == {"put": 2, "take": 1, "ack": 1}
    assert tasks(mine) == tasks(theirs) == {"ready": 1, "done": 1, "total": 1}


def test_each_tube_has_its_own_counters(broker: penstock.Broker) -> None:
    broker.tube("a").put("x")
    assert calls(broker.tube("b")) == {}


def test_len_is_the_total(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", ("c", {"delay": 3})])
    take(tube).ack()
    take(tube)
    assert len(tube) == 2
