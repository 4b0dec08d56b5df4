"""Each database behind: the verbs once, what they leave when Redis is lost, and a database that goes away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from tests.behaviour.helpers import take
from tests.servers.mariadb import Mariadb
from tests.servers.redis import Redis


def test_the_verbs_and_a_loss(front: str, any_database: str, server: Redis) -> None:
    with penstock.connect(front, pool=any_database) as broker:
        tube = broker.tube("Grüße", kind="utubettl", utube_limit=2)
        tube.put_many([(f"a{number}", {"utube": "u"}) for number in range(4)])
        tube.put(b"\0\xff", address="x", reply_to="replies", pri=0)
        group = tube.group("g")
        group.put_many(["m1", "m2"])
        group.on_end({"end": True})
        first, second, third = tube.take_many(9)
        first.release(delay=60)
        second.bury("why")
        third.ack("fine")
        group.start()
        server.ask("FLUSHALL")
        assert [(task.id, task.data, str(task.status)) for task in tube.tasks()] == [
            (1, "a0", "~"), (2, "a1", "!"), (3, "a2", "r"), (4, "a3", "r"), (6, "m1", "r"), (7, "m2", "r"),
        ]  # fmt: skip
        assert take(broker.tube("replies")).data == {"id": 5, "address": "x", "status": "done", "result": "fine"}
        assert tube.wait("x", timeout=0).result == "fine"
        assert tube.ack_many(tube.take_many(9)) == [True] * 4
        assert [task.data for task in tube.take_many(9)] == [{"end": True}]
        assert broker.check() == []


def test_large_data_and_large_batches(front: str, any_database: str, server: Redis) -> None:
    with penstock.connect(front, pool=any_database) as broker:
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
        assert tube.stats().tasks.total == 1  # what was taken first and never acked
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


def test_threads_share_a_pool(front: str, any_database: str) -> None:
    with penstock.connect(front, pool=any_database) as broker, ThreadPoolExecutor(8) as threads:
        tube = broker.tube("t")
        assert len({task.id for task in threads.map(tube.put, range(40))}) == 40

        def work(_: int) -> object:
            task = take(tube)
            task.ack()
            return task.data

        assert sorted(threads.map(work, range(40)), key=str) == sorted(range(40), key=str)
        assert broker.check() == []


def test_a_database_that_is_away_is_told(front: str, mariadb: Mariadb) -> None:
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
