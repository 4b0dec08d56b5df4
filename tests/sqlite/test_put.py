"""A plain put is one statement, which must say and do what the step of every other put does."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sqlite.keys import ID_BITS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


def test_sqlite_reads_the_clock_of_the_host_to_the_millisecond(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail")
        for _ in range(50):
            before = time.time_ns() // 1_000_000
            put = tube.put("x", ttl=1.5)
            after = time.time_ns() // 1_000_000
            stored = tube.peek(put.id)
            assert put.created is not None
            assert before <= round(put.created * 1000) <= after
            assert put.expires == round(put.created + 1.5, 3)
            assert (stored.created, stored.expires) == (put.created, put.expires)


def test_a_plain_put_and_the_others_give_ids_in_one_line(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail")
        broker.tube("other").put("another tube's keys come after")
        ids = [tube.put("plain").id, tube.put("delayed", delay=60).id, tube.put("plain").id]
        assert ids == [1, 2, 3]
        tube.delete(3)
        assert tube.put("plain").id == 4


def test_used_up_ids_are_told_and_never_run_into_the_next_tube(path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("mail")
        last = (1 << ID_BITS) - 1
        apsw.Connection(str(path)).execute("UPDATE penstock_counter SET last_id = ?", (last - 1,))
        assert tube.put("the last").id == last
        with pytest.raises(penstock.StoreFull, match="used up"):
            tube.put("too many")
        assert len(tube.tasks()) == 1
