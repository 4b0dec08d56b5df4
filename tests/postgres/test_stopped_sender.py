"""A client that is stopped while it sends locks no row: nothing that it sends before the long statement takes locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import psycopg
import pytest
from psycopg.generators import execute
from psycopg.pq import Format
from psycopg.waiting import wait

import penstock
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.postgres_wire import Call, Row, Wire
from tests.postgres.schemas import database_of

# Row locks belong to a transaction that has a number.
LOCKS = "SELECT FROM pg_locks WHERE pid = %s AND locktype = 'transactionid'"


def half_sent(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Call]]:
    """What a call sends before the longest of its statements, in each round trip."""
    sent: list[Sequence[Call]] = []
    run = Wire.run

    def recorded(wire: Wire, calls: Sequence[Call]) -> list[list[Row]]:
        sizes = [sum(len(value or b"") for value in one.values) for one in calls]
        sent.append(calls[: sizes.index(max(sizes))])
        return run(wire, calls)

    with monkeypatch.context() as patched:
        patched.setattr(Wire, "run", recorded)
        call()
    return [calls for calls in sent if calls]


VERBS: dict[str, Callable[[penstock.Tube, list[penstock.Task]], object]] = {
    "put_many": lambda tube, held: tube.put_many(
        [("x" * 1000, {"utube": n} if tube.kind == "utube" else {}) for n in range(50)]
    ),
    "put with addresses": lambda tube, held: tube.put_many([("x" * 1000, {"address": str(n)}) for n in range(50)]),
    "ack_many": lambda tube, held: tube.ack_many(held),
    "release_all": lambda tube, held: tube.release_all(),
    "truncate": lambda tube, held: tube.truncate(),
}


@pytest.mark.parametrize("kind", ["fifo", "utube"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_comes_before_the_long_statement_locks_no_row(
    broker: penstock.Broker, url: str, monkeypatch: pytest.MonkeyPatch, kind: str, verb: str
) -> None:
    tube = broker.tube("work", kind)
    tube.put_many([(n, {"utube": n} if kind == "utube" else {}) for n in range(40)])
    held = tube.take_many(20)
    starts = half_sent(lambda: VERBS[verb](tube, held), monkeypatch)
    assert starts
    server = database_of(broker).server
    with psycopg.connect(locate(url).conninfo, autocommit=True) as looking:
        for calls in starts:
            with closing(server.open()) as stopped:
                pgconn = stopped.pgconn
                pgconn.enter_pipeline_mode()
                for query, values, formats in calls:
                    pgconn.send_query_params(query.sent, values, None, formats, Format.BINARY)
                pgconn.send_flush_request()
                for _ in calls:
                    wait(execute(pgconn), pgconn.socket, 0.1)
                assert looking.execute(LOCKS, (stopped.info.backend_pid,)).fetchall() == []
                task = tube.take(0)  # and no client waits for it
                if task is not None:
                    task.release()


def test_a_frozen_sender_of_many_tasks_blocks_no_taker(broker: penstock.Broker, url: str) -> None:
    """The long statement itself is half sent: the server has not started it yet."""
    tube = broker.tube("work", "utube")
    tube.put_many([(n, {"utube": n}) for n in range(40)])
    with closing(database_of(broker).server.open()) as stopped:
        pgconn = stopped.pgconn
        pgconn.enter_pipeline_mode()
        opening = database_of(broker).queries.open
        _, values, formats = opening.call({"tube": tube.stored.no, "handle": None})
        pgconn.send_query_params(opening.sent, values, None, formats, Format.BINARY)
        pgconn.send_flush_request()
        wait(execute(pgconn), pgconn.socket, 0.1)
        assert [task.data for task in tube.take_many(40)] == list(range(40))
