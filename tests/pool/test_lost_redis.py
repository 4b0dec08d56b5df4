"""All of Redis is lost at any time: nothing that the database has is lost, and older leases are invalid."""

from __future__ import annotations

import shutil
from typing import cast

import pytest

import penstock
from penstock.core.attempts import Failure
from penstock.core.entry import plain_entry
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.store_url import with_pool
from penstock.core.task import Record, record_of
from penstock.engine.work import Work
from penstock.operations.store_ops import settle
from penstock.store.pool.pool_store import PoolStore
from penstock.store.pool.vault import Changes
from penstock.store.redis.redis_store import RedisStore
from penstock.testing import Clock, run_queued
from tests.pool.conftest import DATABASES, Connect
from tests.servers.redis import Redis
from tests.support.verbs import take

pytestmark = pytest.mark.parametrize("databases", DATABASES, indirect=True)


def lose(server: Redis) -> None:
    assert server.ask("FLUSHALL") == "OK"


def contents(tube: penstock.Tube) -> list[tuple[object, object, str]]:
    return [(task.id, task.data, str(task.status)) for task in tube.tasks()]


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl"])
def test_tasks_outlive_redis(broker: penstock.Broker, server: Redis, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put_many(["a", "b", "c", b"d"])
    take(tube).ack()
    tube.bury(3, "spoilt")
    lose(server)
    assert contents(tube) == [(2, "b", "r"), (3, "c", "!"), (4, b"d", "r")]
    assert tube.peek(3).reason == "spoilt"
    assert tube.put("e").id == 5
    assert [task.data for task in tube.take_many(9)] == (["b"] if kind.startswith("utube") else ["b", b"d", "e"])


def test_commands_that_restore_the_index_wait_for_no_commit(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    for number in range(3):
        tube.put(number)
    server.kill()
    server.start()
    lose(server)
    tube.put("x")
    waits = server.ask("INFO", "commandstats").partition("cmdstat_blpop:calls=")[2].partition(",")[0]
    assert int(waits or 0) <= 2
    assert tube.stats().tasks.ready == 4


def test_counters_outlive_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b", "c", "d"], delay=60)
    tube.put_many(["e", "f"])
    take(tube).ack()
    tube.delete(1)
    before = tube.stats()
    lose(server)
    after = tube.stats()
    assert after.tasks == before.tasks
    assert after.calls == before.calls


def test_a_lease_from_before_is_dead(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("work")
    old = take(tube)
    lose(server)
    new = take(tube)
    assert (new.id, new.data) == (old.id, "work")
    assert new.lease > old.lease
    with pytest.raises(penstock.NotTaken):
        old.ack()
    with pytest.raises(penstock.NotTaken):
        old.release()
    with pytest.raises(penstock.NotTaken):
        tube.delete(old)
    new.ack()


def test_leases_of_new_tasks_are_above_those_of_an_earlier_epoch(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("a")
    old = take(tube)
    lose(server)
    store, stored = broker.runtime.store, tube.stored
    assert isinstance(store, PoolStore)
    RedisStore.put(store, stored, [plain_entry(stored, b'"new"')])  # taken while its data is still in Redis
    assert [task.data for task in tube.take_many(2) if task.lease > old.lease] == ["a", "new"]


def test_chains_outlive_redis(broker: penstock.Broker, server: Redis, front: str, database: str) -> None:
    app = penstock.App(with_pool(front, database))

    @app.task(tube="one")
    def first(number: int) -> int:
        return number + 1

    @app.task(tube="two")
    def second(number: int) -> int:
        return 10 * number

    handle = penstock.chain(first.call(1), second.call(), first.call()).put()
    lose(server)
    take(broker.tube("one")).ack(4)
    lose(server)
    assert [link.status for link in handle.handles] == ["done", "ready", "pending"]
    run_queued(app)
    assert handle.result(5) == 41
    app.close()


def test_errors_of_attempts_outlive_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("a", address="a")
    for error in ("first", "second"):
        record = record_of(take(tube))
        move = Move("release", record.id, record.owner, record.lease, failure=Failure(error, "traceback"))
        assert settle(tube.runtime, tube.stored, [move]) != [None]
    before = tube.peek(1).errors
    assert [each.error for each in before] == ["first", "second"]
    lose(server)
    assert tube.peek(1).errors == before
    tube.ack(take(tube))
    lose(server)
    assert tube.wait("a", 0).errors == before


def test_reported_attempts_outlive_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t", max_attempts=2)
    tube.put("work")
    take(tube).release()
    lose(server)
    task = take(tube)
    assert task.attempts == 2
    task.release()
    assert tube.peek(1).status is penstock.Status.BURIED


def test_delays_ttls_and_priorities_outlive_redis(front: str, database: str, server: Redis) -> None:
    clock = Clock()
    with penstock.connect(front, pool=database, clock=clock) as broker:
        tube = broker.tube("t")
        tube.put("later", delay=5)
        tube.put("short", ttl=3)
        tube.put("second", pri=2)
        tube.put("first", pri=1)
        lose(server)
        assert tube.put("zero", pri=0).id == 5
        clock.advance(3)
        assert [task.data for task in tube.take_many(9)] == ["zero", "first", "second"]
        clock.advance(2)
        assert take(tube).data == "later"
        assert broker.check() == []


def test_deadlines_are_applied_again_if_redis_is_lost_before_they_are_written(
    front: str, database: str, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expiry is not counted twice."""
    clock = Clock()
    with penstock.connect(front, pool=database, clock=clock) as broker:
        tube, seen = broker.tube("t"), list[str]()
        tube.put_many([("a", {"ttl": 1}), "b"])
        tube.on_change(lambda task, event: seen.append(f"{event} {task.id}"))
        clock.advance(1)
        store = broker.runtime.store
        assert isinstance(store, PoolStore)
        write = store._mirror.write

        def lost_first(of: Tube, epoch: str, version: float, **_: object) -> None:
            monkeypatch.undo()
            lose(server)
            write(of, epoch, version)

        monkeypatch.setattr(store._mirror, "write", lost_first)
        assert len(tube) == 1
        assert (seen, tube.stats().calls.ttl) == (["ttl 1"], 1)
        assert broker.check() == []


def test_addresses_and_outcomes_outlive_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("a", address="live")
    tube.put("b", address="done")
    tube.put("c", address="failed")
    tube.take_many(1)
    second, third = tube.take_many(2)
    second.ack({"answer": 42})
    third.fail("broken", code=7)
    lose(server)
    with pytest.raises(penstock.DuplicateAddress):
        tube.put("again", address="live")
    assert tube.wait("done", timeout=0).result == {"answer": 42}
    failed = tube.wait("failed", timeout=0)
    assert (failed.status, failed.error, failed.code) == ("failed", "broken", 7)
    assert tube.put("new", address="done").id == 4


def test_a_replaced_task_outlives_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("old", address="a", pri=5)
    tube.put("new", address="a", pri=1, on_duplicate="replace")
    lose(server)
    task = take(tube)
    assert (task.id, task.data, task.pri) == (1, "new", 1)


def test_replies_outlive_redis(broker: penstock.Broker, server: Redis) -> None:
    tube, replies = broker.tube("t"), broker.tube("replies")
    tube.put("a", reply_to="replies", address="x")
    take(tube).ack("fine")
    lose(server)
    assert take(replies).data == {"id": 1, "address": "x", "status": "done", "result": "fine"}
    assert tube.tasks() == []


def test_groups_outlive_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    group = tube.group("g")
    group.put_many(["a", "b"])
    group.on_end("end")
    lose(server)
    assert tube.take(0) is None
    group.start()
    take(tube).ack()
    lose(server)
    assert group.progress() == penstock.Progress(1, 2)
    take(tube).ack()
    assert group.wait(0) == "done"
    lose(server)
    assert group.wait(0) == "done"
    assert [task.data for task in tube.take_many(9)] == ["end"]


def test_hand_outs_of_round_and_reliable_outlive_redis(front: str, database: str, server: Redis) -> None:
    clock = Clock()
    with penstock.connect(front, pool=database, clock=clock) as broker:
        feeds = broker.tube("feeds", kind="round", period=10)
        feeds.put("one", id="1")
        feeds.put("two", id="2")
        assert take(feeds).id == "1"
        messages = broker.tube("messages", kind="reliable")
        ids = [task.id for task in messages.put_many(["a", "b", "c"])]
        messages.take_many(2)
        messages.ack(ids[0])
        lose(server)
        assert take(feeds).id == "2"
        assert feeds.take(0) is None
        assert [task.data for task in messages.inspect(0, 9, pending=True)] == ["b"]
        assert take(messages).data == "c"
        assert messages.put("d").id > ids[2]
        assert broker.check() == []


def test_a_pause_outlives_redis(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("a")
    tube.pause()
    lose(server)
    assert tube.take(0) is None
    tube.resume()
    assert take(tube).data == "a"


def test_another_process_continues(connect: Connect, server: Redis) -> None:
    one, other = connect(), connect()
    one.tube("t").put_many(["a", "b"])
    held = take(other.tube("t"))
    lose(server)
    assert take(one.tube("t")).data == "a"
    with pytest.raises(penstock.NotTaken):
        held.ack()
    assert take(other.tube("t")).data == "b"


def test_a_truncate_reports_that_redis_was_lost_between_its_steps(
    broker: penstock.Broker, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = broker.tube("t")
    tube.put_many(range(5))
    flush = Work.flush

    def flush_and_lose(work: Work) -> tuple[set[int], list[Record]]:
        monkeypatch.setattr(Work, "flush", flush)
        flushed = work.flush()
        lose(server)
        return flushed

    monkeypatch.setattr(broker.runtime.store, "remove_step", 2)
    monkeypatch.setattr(Work, "flush", flush_and_lose)
    with pytest.raises(penstock.OutcomeUnknown, match="index of tube t was lost during the call"):
        tube.truncate()
    assert contents(tube) == []
    assert tube.stats().tasks.done == 5


def test_a_dropped_tube_stays_dropped(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put("a")
    tube.drop()
    lose(server)
    assert broker.tubes() == []
    with pytest.raises(penstock.NoSuchTube):
        tube.put("b")
    assert broker.tube("t").put("c").id == 1


def test_redis_holds_no_data_once_a_put_returned(broker: penstock.Broker) -> None:
    tube, data = broker.tube("t"), "needle" * 100
    tube.put(data)
    tube.put(data, address="a")
    tube.put(data, group="g")
    store = broker.runtime.store
    assert isinstance(store, PoolStore)
    tasks = store._keys.name(tube.stored.no, "tasks")
    records = cast("list[bytes]", store._servers.command(tasks, "HVALS", tasks))
    assert len(records) == 3
    assert max(map(len, records)) < len(data)
    assert [task.data for task in tube.tasks()] == [data] * 3


def test_an_index_of_an_older_redis_snapshot_is_rebuilt(connect: Connect, server: Redis) -> None:
    broker = connect()
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    server.ask("CONFIG", "SET", "appendfsync", "always")
    tube.put("c")
    shutil.copytree(server.folder / "appendonlydir", server.folder / "older")
    take(tube).ack()
    tube.bury(2)
    tube.put("d")
    old = take(tube)
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    (server.folder / "older").rename(server.folder / "appendonlydir")
    server.start()
    assert contents(tube) == [(2, "b", "!"), (3, "c", "r"), (4, "d", "r")]
    with pytest.raises(penstock.NotTaken):
        old.ack()
    assert [task.data for task in tube.take_many(9)] == ["c", "d"]


def test_a_write_notices_that_the_database_lost_its_newest_ones(connect: Connect) -> None:
    one, two = connect(), connect()
    tube = one.tube("t")
    tube.put("kept")
    vault, no = cast(PoolStore, one.runtime.store)._vault, tube.stored.no
    older = vault.tube(no)
    two.tube("t").put("lost")
    newer = vault.tube(no)
    assert older is not None
    assert newer is not None
    assert older.beside is not None
    vault.write(no, older.beside, [Changes(gone=[2])], known=0, version=newer.written + 1)
    vault._db.run(lambda session: session.change(vault._ask.set_written, (older.written, no)))
    with pytest.raises(penstock.OutcomeUnknown):
        two.tube("t").put("unknown")
    assert contents(tube) == [(1, "kept", "r")]
    assert tube.put("after").id == 2
    assert two.check() == []
