"""What depends on the database: size limits, threads that share it, and outages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from tests.pool.conftest import DATABASES
from tests.servers.mariadb import Mariadb
from tests.servers.redis import Redis
from tests.support.verbs import take


@pytest.mark.parametrize("databases", DATABASES, indirect=True)
def test_large_data_and_large_batches(front: str, database: str, server: Redis) -> None:
    with penstock.connect(front, pool=database) as broker:
        tube = broker.tube("t", kind="fifo")
        large = "x" * 1_000_000
        tube.put(large)
        tube.put_many(range(1000))
        server.ask("FLUSHALL")
        assert take(tube).data == large
        tasks = tube.take_many(1000)
        assert [task.data for task in tasks] == list(range(1000))
        assert all(tube.ack_many(tasks))
        server.ask("FLUSHALL")
        assert tube.stats().tasks.total == 1  # the task taken first and never acked
        tube.truncate()
        tube.drop()
        assert broker.tubes() == []


def test_data_that_the_database_cannot_store_is_refused(front: str, mariadb: Mariadb) -> None:
    with penstock.connect(front, pool=mariadb.bare_url()) as broker:
        tube = broker.tube("t", max_payload=2**30)
        with pytest.raises(penstock.PayloadTooLarge, match="max_allowed_packet"):
            tube.put(b"x" * 10_000_000)
        tube.put(b"\0" * 7_000_000)
        task = take(tube)
        with pytest.raises(penstock.PayloadTooLarge):
            task.ack(b"x" * 10_000_000)
        task.ack(b"x" * 1_000_000)


@pytest.mark.parametrize("databases", DATABASES, indirect=True)
def test_threads_share_a_pool(front: str, database: str) -> None:
    with penstock.connect(front, pool=database) as broker, ThreadPoolExecutor(8) as threads:
        tube = broker.tube("t")
        assert len({task.id for task in threads.map(tube.put, range(40))}) == 40

        def work(_: int) -> object:
            task = take(tube)
            task.ack()
            return task.data

        assert sorted(threads.map(work, range(40)), key=str) == sorted(range(40), key=str)
        assert broker.check() == []


def test_an_unavailable_database_is_reported(front: str, mariadb: Mariadb) -> None:
    with penstock.connect(front, pool=mariadb.bare_url()) as broker:
        tube = broker.tube("t")
        tube.put("a")
        held = take(tube)
        tube.put("b")
        mariadb.kill()
        try:
            with pytest.raises(penstock.StoreUnavailable):
                tube.take(0)
            with pytest.raises(penstock.OutcomeUnknown):
                tube.put("c")
        finally:
            mariadb.start()
        held.ack()
        assert [task.data for task in tube.take_many(9)] == ["b", "c"]
        assert broker.check() == []
