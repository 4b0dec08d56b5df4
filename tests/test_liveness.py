"""Lock files that show which processes are alive on this host: created and removed concurrently, or not possible."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

import penstock
from penstock.runtime.liveness import Locks
from tests.support.verbs import take


def test_sessions_begin_and_end_concurrently(tmp_path: Path) -> None:
    def come_and_go(_: int) -> set[str]:
        locks, held = Locks(tmp_path, "store"), set()
        for _ in range(1000):  # the last one removes the folder, which another may have just found
            handle = uuid4().hex
            held.add(locks.hold(handle))
            locks.release(handle)
        return held

    locus = Locks(tmp_path, "store").locus
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(come_and_go, range(4))) == [{locus}] * 4


def test_a_session_without_a_lock_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    with penstock.connect(f"sqlite:///{tmp_path}/queue.db") as broker:
        tube = broker.tube("t", kind="fifo")
        tube.put("x")
        assert broker.runtime.locks is not None
        broker.runtime.locks._folder.touch()  # a file where the folder should be
        take(tube).ack()
        assert len(broker.sessions()) == 1
    assert "others notice it later" in caplog.text
