"""The fast path of a put without options: errors in it are handled as in every other call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

import penstock
from penstock.core.task import record_of
from penstock.store.postgres.postgres_connection import locate
from tests.postgres.schemas import database_of
from tests.support.threads import begin, until
from tests.support.verbs import drain


@contextmanager
def held(url: str, statement: str) -> Iterator[psycopg.Connection]:
    """Another connection holds the locks of a statement in the store's schema."""
    with psycopg.connect(locate(url).conninfo) as other:
        other.execute(f"SET LOCAL search_path = {locate(url).quoted}")
        other.execute(statement.encode())
        yield other


def waits(url: str) -> bool:
    with psycopg.connect(locate(url).conninfo) as looking:
        return looking.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").rowcount > 0


def test_data_larger_than_a_socket_buffer_is_read_back(broker: penstock.Broker) -> None:
    tube = broker.tube("work", max_payload=1 << 24)
    data = os.urandom(8 << 20)
    tube.put(data)
    assert drain(tube) == [data]


def test_the_options_of_the_tube_are_stored_with_its_tasks(broker: penstock.Broker) -> None:
    options: dict[str, object] = {"pri": 7, "ttl": 90, "ttr": 30, "max_attempts": 3, "callback": "http://127.0.0.1/x"}
    put = broker.tube("work", **options).put("x")  # type: ignore[arg-type]
    stored = broker.tube("work").peek(put.id)
    assert record_of(stored) == record_of(put)
    assert (stored.pri, record_of(stored).ttr, record_of(stored).options.max_attempts) == (7, 30_000, 3)
    assert record_of(stored).options.callback == "http://127.0.0.1/x"
    assert stored.expires == stored.created + 90


def test_a_put_waits_for_an_exclusive_lock_of_its_tube(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("work")
    lock = f"SELECT pg_advisory_xact_lock('penstock_tube'::regclass::oid::integer, {tube.stored.no})"
    with held(url, lock) as other:
        putting = begin(lambda: tube.put("x"))
        until(lambda: waits(url))
        other.rollback()
        assert putting.result(30).id == 1


def test_a_put_into_a_dropped_tube_raises(broker: penstock.Broker) -> None:
    tube = broker.tube("work")
    tube.put("x")
    tube.drop()
    with pytest.raises(penstock.NoSuchTube, match="work"):
        tube.put("y")


def test_a_blocked_put_raises_if_its_tube_is_dropped(broker: penstock.Broker, url: str) -> None:
    """Its snapshot is older than the drop; it must not store into the dropped tube."""
    tube = broker.tube("work")
    tube.put("x")
    with psycopg.connect(locate(url).conninfo) as other:
        database_of(broker).bind(other).drop_tube(tube.stored)
        putting = begin(lambda: tube.put("y"))
        until(lambda: waits(url))
    with pytest.raises(penstock.NoSuchTube, match="work"):
        putting.result(30)


def test_a_connection_cut_during_a_put_leaves_its_outcome_unknown(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("work")
    with held(url, "LOCK penstock_delta IN EXCLUSIVE MODE") as other:
        putting = begin(lambda: tube.put("x"))
        until(lambda: waits(url))
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with pytest.raises(penstock.OutcomeUnknown):
            putting.result(30)
    tube.put("y")
    assert drain(tube) == ["y"]


def test_an_interrupted_put_leaves_no_connection_behind_that_others_meet(broker: penstock.Broker, url: str) -> None:
    tube = broker.tube("work")
    tube.put("first")

    def interrupt() -> None:
        until(lambda: waits(url))
        os.kill(os.getpid(), signal.SIGINT)

    with held(url, "LOCK penstock_delta IN EXCLUSIVE MODE"):
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            tube.put("interrupted")
        interrupting.join()
    tube.put("next")
    # The interrupted put may be stored or not, and perhaps only after the next one.
    assert sorted(map(str, drain(tube))) in (["first", "next"], ["first", "interrupted", "next"])


def test_callers_take_turns_with_one_connection(url: str) -> None:
    with penstock.connect(f"{url}&pool_size=1") as broker, ThreadPoolExecutor(4) as callers:
        tube = broker.tube("work")
        assert len({task.id for task in callers.map(tube.put, range(400))}) == 400
