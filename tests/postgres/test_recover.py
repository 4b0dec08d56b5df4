"""Concurrent calls of recover: each hands out what the others have not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

import penstock
from penstock.core.select import Sweep
from penstock.store.postgres.postgres_connection import locate
from penstock.testing import Clock
from tests.support.threads import until


def test_a_recover_that_meets_another_gets_the_next_messages(url: str) -> None:
    clock = Clock()
    with penstock.connect(url, clock=clock) as broker, ThreadPoolExecutor(1) as pool:
        queue = broker.tube("queue", kind="reliable")
        queue.put_many(range(10))
        queue.take_many(10)
        clock.advance(5)
        with psycopg.connect(locate(url).conninfo) as db:
            recovered = broker.runtime.store.bind(db).sweep(queue.stored, Sweep("recover", 4, 5000))
            assert [record.payload for record in recovered.records if record] == [b"0", b"1", b"2", b"3"]
            second = pool.submit(queue.recover, 4, 5)
            with psycopg.connect(locate(url).conninfo, autocommit=True) as looking:
                until(lambda: looking.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
            assert queue.take(0) is None  # and no other waits
            queue.put("eleventh")
        assert [task.data for task in second.result(30)] == [4, 5, 6, 7]
        assert [task.data for task in queue.recover(9, 5)] == [8, 9]
        assert [task.attempts for task in queue.inspect(0, 10, pending=True)] == [2] * 10
        assert broker.check() == []
