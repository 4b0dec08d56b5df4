"""An older copy of a store is restored (SPEC 11): attempts repeat, and an older one cannot settle a newer one."""

from __future__ import annotations

from functools import partial

import pytest

import penstock
from penstock.core.task import record_of
from tests.fault.snapshots import snapshot


@pytest.mark.parametrize("kind", ["fifottl", "utube"])
def test_an_older_attempt_settles_no_newer_one(durable_url: str, kind: str) -> None:
    with penstock.connect(durable_url) as broker:
        session = broker.session(ttr=60)
        broker.create_tube("t", kind, utube_limit=2 if kind == "utube" else None).put_many(
            ["a", "b", ("c", {"address": "c"})]
        )
        tube = session.tube("t")
        tube.ack_many(tube.take_many(1))  # its handle is known there
        restore = snapshot(durable_url)
        before = tube.take_many(2)
    restore()
    with penstock.connect(durable_url) as broker:
        tube = broker.session(id=session.id).tube("t")
        after = tube.take_many(2)
        assert [facts(task) for task in before] == [facts(task) for task in after]
        for old in before:
            for verb in (tube.ack, tube.release, tube.bury, tube.delete, partial(tube.fail, error="late")):
                with pytest.raises(penstock.NotTaken):
                    verb(old)
        assert tube.ack_many(before) == [False, False]
        assert tube.ack_many(after) == [True, True]
        assert tube.wait("c", 0).status == "done"
        assert broker.check() == []


def test_an_attempt_whose_group_is_lost_settles_nothing(durable_url: str) -> None:
    with penstock.connect(durable_url) as broker:
        session = broker.session(ttr=60)
        broker.create_tube("t", "fifottl").put("a")
        tube = session.tube("t")
        tube.ack_many(tube.take_many(1))  # its handle is known there
        restore = snapshot(durable_url)
        group = tube.group("g")
        group.put("b")
        group.start()
        old = tube.take(5)
        assert old is not None
    restore()
    with penstock.connect(durable_url) as broker:
        tube = broker.session(id=session.id).tube("t")
        for verb in (tube.ack, tube.release, tube.bury, tube.delete, partial(tube.fail, error="late")):
            with pytest.raises(penstock.NotTaken):
                verb(old)


def test_an_older_group_changes_no_newer_one(durable_url: str) -> None:
    with penstock.connect(durable_url) as broker:
        broker.create_tube("t", "fifottl").group("before").put("a")
        restore = snapshot(durable_url)
        older = broker.tube("t").group("older")
        older.put("b")
    restore()
    with penstock.connect(durable_url) as broker:
        newer = broker.tube("t").group("newer")
        newer.put("c")
        group = broker.tube("t").group("newer")
        group._no, group._name = older._no, "older"  # as a program has it that kept running
        for verb in (partial(group.put, "d"), partial(group.on_end, "end"), group.progress):
            with pytest.raises(penstock.NotFound):
                verb()
        group.start()
        group.cancel()
        assert (newer.status, newer.progress().total) == ("open", 1)
        assert broker.check() == []


def facts(task: penstock.Task) -> tuple[object, ...]:
    """The fields by which an older penstock distinguished attempts."""
    return task.id, task.lease, record_of(task).owner


def test_numbers_stay_small_and_grow(durable_url: str) -> None:
    with penstock.connect(durable_url) as broker:
        tube = broker.tube("t")
        tube.put("a")
        for number in (1, 2, 3):
            task = tube.take(0)
            assert task is not None
            assert (task.lease, task.attempts, tube.peek(1).lease) == (number, number, number)
            task.release()
