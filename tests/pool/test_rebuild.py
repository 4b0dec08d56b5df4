"""`penstock rebuild`, and a program that starts and finds Redis empty."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

import penstock
from penstock.core.store_url import with_pool
from penstock.store.open import rebuild_index
from penstock.store.pool.pool_store import PoolStore
from tests.pool.conftest import Connect
from tests.servers.redis import Redis
from tests.support.shell import Shell
from tests.support.threads import begin
from tests.support.verbs import take


def store_of(broker: penstock.Broker) -> PoolStore:
    store = broker.runtime.store
    assert isinstance(store, PoolStore)
    return store


def epoch_of(broker: penstock.Broker) -> int:
    return store_of(broker)._servers.epoch


@pytest.mark.parametrize("lost", [False, True], ids=["whole", "lost"])
def test_the_command_rebuilds_the_index(front: str, database: str, server: Redis, tmp_path: Path, lost: bool) -> None:
    with penstock.connect(front, pool=database) as broker:
        tube = broker.tube("t")
        tube.put_many(range(450))
        old = take(tube)
        if lost:
            server.ask("FLUSHALL")
        assert Shell(tmp_path, front)("--pool", database, "rebuild") == "the index is complete: 450 tasks"
        with pytest.raises(penstock.NotTaken):
            old.ack()
        assert [task.data for task in tube.take_many(1000)] == list(range(450))
        assert broker.check() == []


def test_micro_queues_count_tasks_that_the_database_knows_as_taken(front: str, database: str, server: Redis) -> None:
    with penstock.connect(front, pool=database) as broker:
        tube = broker.tube("t", kind="utube")
        tube.put_many(["a", "b", "c"], utube="u")
        take(tube)
        server.ask("DEL", f"{{{store_of(broker)._keys.prefix}:{tube.stored.no}}}:taken")
        assert len(broker.check(repair=True)) == 1  # writes the task as it is now, taken
        server.ask("FLUSHALL")
        first = take(tube)
        assert (first.data, tube.take(0)) == ("a", None)
        assert broker.check() == []
        first.ack()
        assert take(tube).data == "b"
        assert broker.check() == []


def test_progress_is_reported_page_by_page(front: str, database: str) -> None:
    with penstock.connect(front, pool=database) as broker:
        broker.tube("a").put_many(range(250))
        broker.tube("b").put("x")
    reported: list[tuple[int, int]] = []
    rebuild_index(with_pool(front, database), lambda done, total: reported.append((done, total)))
    assert reported == [(200, 251), (250, 251), (251, 251)]


def test_the_command_prints_json(front: str, database: str, tmp_path: Path) -> None:
    assert Shell(tmp_path, with_pool(front, database)).json("rebuild") == {"tasks": 0}


def test_a_store_without_an_index_is_refused(tmp_path: Path) -> None:
    refusal = Shell(tmp_path, "memory://").refused("rebuild")
    assert refusal.startswith("only a pool has an index to rebuild")


def test_the_next_start_builds_a_lost_index(front: str, database: str, server: Redis) -> None:
    with penstock.connect(front, pool=database) as broker:
        broker.tube("t").put("a")
    server.ask("FLUSHALL")
    with penstock.connect(front, pool=database) as broker:
        assert epoch_of(broker) == 2
        assert take(broker.tube("t")).data == "a"


def test_processes_that_find_it_lost_build_it_once(connect: Connect, server: Redis) -> None:
    brokers = [connect() for _ in range(4)]
    brokers[0].tube("t").put_many(range(300))
    server.ask("FLUSHALL")
    threads = [threading.Thread(target=lambda broker=broker: broker.tube("t").stats()) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {epoch_of(broker) for broker in brokers} == {2}
    assert brokers[1].tube("t").stats().tasks.ready == 300


@pytest.mark.parametrize("place", range(1, 7))
def test_a_second_rebuild_waits_for_the_first(connect: Connect, server: Redis, place: int) -> None:
    """The first has only raised the epoch when the second starts, and ends after the second's nth command."""
    builder, other = connect(), connect()
    tube, same = builder.tube("t"), other.tube("t")
    tube.put("a")
    server.ask("FLUSHALL")
    builders, others = store_of(builder), store_of(other)
    raise_epoch, send = builders._vault.raise_epoch, others._servers.send
    raised, proceed, commands = threading.Event(), threading.Event(), count(1)

    def slowly(known: int) -> bool:
        found = raise_epoch(known)
        raised.set()
        assert proceed.wait(60)
        return found

    def interrupted(key: bytes, *words: bytes | str | float) -> object:
        answer = send(key, *words)
        if next(commands) == place:
            proceed.set()
            assert building.result(60).tasks.ready == 1
        return answer

    builders._vault.raise_epoch = slowly  # type: ignore[method-assign]
    others._servers.send = interrupted  # type: ignore[method-assign]
    building = begin(tube.stats)
    assert raised.wait(60)
    assert same.stats().tasks.ready == 1
    assert (epoch_of(builder), epoch_of(other)) == (2, 2)


def test_an_index_that_is_lost_while_it_is_built_is_built_again(connect: Connect, server: Redis) -> None:
    broker = connect()
    tube = broker.tube("t")
    tube.put_many(range(300))
    flushes = iter([server.ask])

    def flush_once(done: int, total: int) -> None:
        for ask in flushes:
            ask("FLUSHALL")

    store_of(broker).rebuild(flush_once)
    assert [task.data for task in tube.take_many(1000)] == list(range(300))
    assert broker.check() == []
