"""Behind a real PgBouncer with transaction pooling, with ?notify=off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.servers import started
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.support.threads import begin, until
from tests.support.verbs import take


@pytest.fixture
def pooled(server: Postgres) -> Iterator[PgBouncer]:
    with started(lambda: PgBouncer(server)) as pooled:
        yield pooled


def test_the_main_verbs_through_a_transaction_pool(pooled: PgBouncer) -> None:
    """More connections than the pool has, so that each call may reach another server process."""
    with penstock.connect(pooled.fresh_url()) as broker:
        tube = broker.tube("work")
        waiting = begin(lambda: tube.take(60))
        until(lambda: any(session.waits for session in broker.sessions()))

        def work() -> None:
            tube.put_many(range(10))
            take(tube).release()
            take(tube).bury()
            task = take(tube)
            task.touch(5)
            task.ack()

        working = [begin(work) for _ in range(8)]
        woken = waiting.result(30)
        for done in working:
            done.result(30)
        assert woken is not None
        woken.ack()
        group = tube.group("g")
        group.put("member", address="a")
        group.on_end("end")
        group.start()
        calls = tube.stats().calls
        assert (calls.put, calls.release, calls.touch, calls.bury, calls.ack) == (81, 8, 8, 8, 9)
        assert tube.kick(100) == 8
        assert tube.truncate() == 81 - 9
        assert tube.wait("a", 5).status == "deleted"
        assert tube.peek(82).data == "end"
        assert broker.check() == []
