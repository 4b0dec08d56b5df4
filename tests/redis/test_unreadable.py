"""Foreign bytes instead of a task: the task is buried, and its tube and micro-queue continue."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pytest

import penstock
from penstock.store.redis.encoding import task_key
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock
from penstock.transfer.export_import import export_tube
from tests.redis.test_check import run
from tests.support.verbs import drain
from tests.transfer.sample_tubes import moved

KINDS = ["fifo", "fifottl", "utube", "utubettl"]
# Too short for its flags, an unknown state, and nothing at all.
BYTES = [b"garbage", b"x" + bytes(8) + b'"x"', b""]


@pytest.fixture
def broker(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    with penstock.connect(url, clock=clock) as broker:
        yield broker
        assert broker.check() == []


def spoil(tube: penstock.Tube, id: int, stored: bytes = b"garbage") -> None:
    store = tube.runtime.store
    assert isinstance(store, RedisStore)
    run(store, tube.stored.no, "HSET", "tasks", task_key(id), stored)


def must_be_buried(tube: penstock.Tube, id: int, stored: bytes = b"garbage") -> None:
    assert tube.stats().tasks.buried == 1
    assert tube.stats().calls.bury == 1
    task = tube.peek(id)
    assert (task.status, task.data, task.reason) == ("!", b"\xff" + stored, "its stored record could not be read")


@pytest.mark.parametrize("stored", BYTES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_ready_task_is_skipped(broker: penstock.Broker, kind: str, stored: bytes) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many([*"abc"])
    spoil(tube, 1, stored)
    assert drain(tube) == ["b", "c"]
    must_be_buried(tube, 1, stored)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_micro_queue_of_an_unreadable_task_continues(broker: penstock.Broker, at: int, fair: bool) -> None:
    tube = broker.tube("t", kind="utubettl", fair=fair)
    tube.put_many([(data, {"utube": "one"}) for data in "abc"])
    tube.put("d", utube="two")
    spoil(tube, at)
    assert sorted(map(str, drain(tube))) == sorted(set("abcd") - {"abc"[at - 1]})
    must_be_buried(tube, at)


def test_a_take_from_several_tubes_continues(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="utube")
    broker.tube("other")
    assert broker.take(["other", "t"], 0) is None
    tube.put_many([*"ab"])
    spoil(tube, 1)
    task = broker.take(["other", "t"], 0)
    assert task is not None
    assert task.data == "b"
    task.ack()
    must_be_buried(tube, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_one_cannot_be_acked(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many([*"ab"])
    task = tube.take(0)
    assert task is not None
    spoil(tube, 1)
    with pytest.raises(penstock.NotTaken):
        task.ack()
    must_be_buried(tube, 1)
    assert drain(tube) == ["b"]


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_deadlines_are_applied_without_it(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many([("a", {"delay": 1}), ("b", {"delay": 1}), ("c", {"ttl": 1})])
    spoil(tube, 1)
    clock.advance(2)
    assert drain(tube) == ["b"]
    must_be_buried(tube, 1)
    assert tube.stats().tasks.delayed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_its_session_releases_the_others(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    with broker.session() as session:
        tube.put_many([(data, {"utube": data} if "utube" in kind else {}) for data in "ab"])
        assert len(session.tube("t").take_many(2)) == 2
        spoil(tube, 1)
    assert drain(tube) == ["b"]
    must_be_buried(tube, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_never_handed_out_but_can_be_deleted(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("a")
    spoil(tube, 1, b"17")
    assert drain(tube) == []
    assert tube.kick() == 1
    assert drain(tube) == []
    assert "cannot be decoded" in (tube.peek(1).reason or "")
    tube.delete(1)
    assert tube.stats().tasks.total == 0


@pytest.mark.parametrize("verb", ["delete", "truncate"])
def test_an_unread_one_can_be_removed(broker: penstock.Broker, verb: str) -> None:
    tube = broker.tube("t", kind="utube")
    tube.put_many([*"ab"])
    spoil(tube, 1)
    if verb == "delete":
        tube.delete(1)
        assert drain(tube) == ["b"]
    else:
        tube.truncate()
    assert tube.stats().tasks.total == 0


@pytest.mark.parametrize("found_by", ["take", "check"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_has_lost_its_address_and_its_group(broker: penstock.Broker, kind: str, found_by: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("a", address="x")
    group = tube.group("g")
    group.put_many(["b", ("c", {"address": "y"}), "d"])
    group.on_end("end")
    if found_by == "take":
        group.start()
    spoil(tube, 1)
    spoil(tube, 3)
    if found_by == "check":
        broker.check(repair=True)
        group.start()
    assert drain(tube) == ["b", "d", "end"]
    assert [(task.id, task.address, task.group) for task in tube.tasks("!")] == [(1, None, None), (3, None, None)]
    assert [tube.wait(address, 0).status for address in "xy"] == ["unknown", "unknown"]
    tube.put("again", address="x")
    assert drain(tube) == ["again"]


def test_an_address_that_was_put_again_before_is_not_taken_back(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("a", address="x")
    spoil(tube, 1)
    assert tube.put("b", address="x").id == 2
    assert drain(tube) == ["b"]
    assert tube.peek(1).address is None


@pytest.mark.parametrize("kind", [*KINDS, "round", "reliable"])
def test_check_finds_it_and_repair_fixes_it(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind, **({"period": 5} if kind == "round" else {}))  # type: ignore[arg-type]
    tube.put_many([(data, {"id": data} if kind == "round" else {}) for data in "ab"])
    spoil(tube, 1)
    (found,) = [finding for finding in broker.check() if "did not write" in finding.what]
    assert found.id == 1
    broker.check(repair=True)
    assert broker.check() == []
    assert [task.data for task in tube.take_many(9)] == ["b"]


def test_messages_and_elements_are_skipped(broker: penstock.Broker) -> None:
    feeds, queue = broker.tube("feeds", kind="round", period=5), broker.tube("queue", kind="reliable")
    feeds.put_many([(data, {"id": data}) for data in "ab"])
    queue.put_many([*"ab"])
    spoil(feeds, 1)
    spoil(queue, 1)
    assert [task.data for task in feeds.take_many(9)] == ["b"]
    assert [task.data for task in queue.take_many(9)] == ["b"]
    broker.check(repair=True)
    for tube in (feeds, queue):
        (task,) = [task for task in tube.tasks() if task.data == b"\xffgarbage"]
        tube.delete(task.id)


def test_one_that_a_rebuilt_index_gets_is_buried_by_the_check(broker: penstock.Broker) -> None:
    tube, store = broker.tube("t"), broker.runtime.store
    assert isinstance(store, RedisStore)
    tube.put("a")
    tube.delete(1)
    store._runner.on_tube("import", tube.stored, "", 0, 0, task_key(1), b"garbage", idempotent=True)
    assert drain(tube) == []
    broker.check(repair=True)
    must_be_buried(tube, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_moves_as_a_buried_task(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many([*"abc"])
    spoil(tube, 1)
    with penstock.connect("memory://new", clock=clock) as new:
        moved(broker, new, "t")
        assert drain(new.tube("t")) == ["b", "c"]
        task = new.tube("t").peek(1)
        assert (task.status, task.data, task.reason) == ("!", b"\xffgarbage", "its stored record could not be read")
        assert new.check() == []


def test_messages_that_went_while_they_were_read_end_no_export(broker: penstock.Broker) -> None:
    tube = broker.tube("t", "reliable")
    tube.put_many(range(40))
    for id in range(10, 36):  # more than the first page, and the next
        spoil(tube, id)
    file = BytesIO()
    assert export_tube(broker.runtime.store, tube.stored, file, lambda count: None) == 14
    broker.check(repair=True)
