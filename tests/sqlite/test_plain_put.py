"""A plain put is one statement, which must return and store the same as the general path."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sql.sql_queries import ID_BITS
from tests.support.inspection import waiters
from tests.support.threads import until


def test_sqlite_reads_the_clock_of_the_host_to_the_millisecond(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail")
        for _ in range(50):
            before = time.time_ns() // 1_000_000
            put = tube.put("x", ttl=1000.5)
            after = time.time_ns() // 1_000_000
            stored = tube.peek(put.id)
            assert put.created is not None
            assert before <= round(put.created * 1000) <= after
            assert put.expires == round(put.created + 1000.5, 3)
            assert (stored.created, stored.expires) == (put.created, put.expires)


def test_plain_and_other_puts_share_one_sequence_of_ids(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail")
        broker.tube("other").put("another tube's keys come after")
        ids = [tube.put("plain").id, tube.put("delayed", delay=60).id, tube.put("plain").id]
        assert ids == [1, 2, 3]
        tube.delete(3)
        assert tube.put("plain").id == 4


def test_used_up_ids_raise_and_never_reach_the_next_tube(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail")
        last = (1 << ID_BITS) - 1
        apsw.Connection(str(path)).execute("UPDATE penstock_counter SET last_id = ?", (last - 1,))
        assert tube.put("the last").id == last
        with pytest.raises(penstock.StoreFull, match="used up"):
            tube.put("too many")
        assert len(tube.tasks()) == 1


def test_a_plain_put_notifies_listeners_and_wakes_a_taker(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker, ThreadPoolExecutor(1) as pool:
        tube = broker.tube("mail")
        events: list[tuple[int, str]] = []
        tube.on_change(lambda task, event: events.append((task.id, event)))
        taken = pool.submit(tube.take, 30)
        until(lambda: waiters(broker, "mail") == 1)
        put = tube.put({"to": "ada"})
        got = taken.result(30)
        assert got is not None
        assert (got.id, got.data) == (put.id, {"to": "ada"})
        assert sorted(events) == [(1, "put"), (1, "take")]  # by two threads, in any order


def test_a_put_without_options_keeps_the_tubes_own_options(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail", "fifottl", ttl=2000, ttr=3, pri=7, max_attempts=2, temporary=True)
        put = tube.put("x")
        kept = tube.peek(put.id)
        assert put.created is not None
        assert (put.pri, put.expires) == (kept.pri, kept.expires) == (7, round(put.created + 2000, 3))
        task = tube.take(0)
        assert task is not None
        assert task.taken is not None
        assert task.due == round(task.taken + 3, 3)


def test_a_put_without_options_is_refused_as_any_other(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube, small = broker.tube("mail"), broker.tube("small", max_payload=3, capacity=1)
        with pytest.raises(penstock.PayloadTooLarge, match="4 bytes is over the limit of 3 of tube small"):
            small.put(b"long")
        small.put(b"one")
        with pytest.raises(penstock.TubeFull, match="small"):
            small.put(b"two")
        with pytest.raises(penstock.BadValue, match="nan"):
            tube.put(float("nan"))
        with pytest.raises(TypeError, match=r"put\(\)"):
            tube.put("a", "b")  # type: ignore[arg-type, call-arg]
        broker.tube("mail").drop()
        with pytest.raises(penstock.NoSuchTube, match="mail"):
            tube.put("x")
    with pytest.raises(penstock.StoreUnavailable, match="closed: connect again"):
        tube.put("x")
