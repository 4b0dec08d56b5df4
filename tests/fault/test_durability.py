"""What is on disk when a put has returned, and how much of a torn write-ahead log is read."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.store.sqlite import sqlite_connection
from tests.fault.invariants import require
from tests.support.peer import ROOT, environment

_FRAME_HEADER = 24
_WAL_HEADER = 32


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every sync of a log."""
    found: list[int] = []

    def sync(descriptor: int) -> None:
        found.append(descriptor)
        os.fsync(descriptor)

    monkeypatch.setattr(sqlite_connection, "_sync_file", sync)
    return found


@pytest.mark.parametrize(("query", "synced"), [("", 1), ("?durability=full", 1), ("?durability=relaxed", 0)])
def test_the_url_says_how_durable_a_put_is(path: Path, query: str, synced: int, syncs: list[int]) -> None:
    with penstock.connect(f"sqlite:///{path}{query}") as broker:
        tube = broker.tube("t")
        for put in (lambda: tube.put("x"), lambda: tube.put_many(["x", "y"])):
            syncs.clear()
            put()
            assert len(syncs) == synced


def test_each_transaction_is_as_durable_as_its_tube(broker: penstock.Broker, syncs: list[int]) -> None:
    lasting, passing = broker.tube("lasting"), broker.tube("passing", temporary=True)
    for tube, synced in ((lasting, 1), (passing, 0), (lasting, 1), (lasting, 1)):
        for count in (1, 2):
            syncs.clear()
            tube.put_many(["x"] * count)
            assert len(syncs) == synced
    passing.take(0)  # its session is there now
    syncs.clear()
    assert broker.take(["passing", "lasting"], timeout=0) is not None
    assert len(syncs) == 1


_PUTS = """
import sys, penstock
broker = penstock.connect(sys.argv[1])
tube = broker.tube("t", temporary=sys.argv[2] == "temporary" or None)
tube.put("warm")
print("BEGIN", flush=True)
for number in range(20):
    tube.put(number)
    print("PUT", flush=True)
"""


@pytest.mark.parametrize(
    ("query", "tube", "syncs"), [("", "lasting", 1), ("", "temporary", 0), ("?durability=relaxed", "", 0)]
)
def test_a_put_has_synced_before_it_returns(path: Path, query: str, tube: str, syncs: int) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: only calls in the process were counted")
    trace = path.with_suffix(".trace")
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync,write", sys.executable, "-c", _PUTS]
    url = f"sqlite:///{path}{query}"
    done = subprocess.run(
        [*command, url, tube], env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("tracing a process is not permitted here: only calls in the process were counted")
    assert done.returncode == 0, done.stderr
    _, *puts = trace.read_text().split('"BEGIN')
    counted = [part.count("sync(") for part in puts[0].split('"PUT')[:20]]
    assert counted == [syncs] * 20


def snapshot(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), Path(f"{path}-wal").read_bytes()


def test_a_log_cut_anywhere_in_its_last_commit_is_whole_or_without_it(path: Path, tmp_path: Path) -> None:
    """Cut at every byte of the last frame, and at every frame of the last commit."""
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("t", kind="utube")
        tube.put_many([("x" * 500, {"utube": n}) for n in range(20)])
        _, before = snapshot(path)
        tube.put_many([("y" * 500, {"utube": n}) for n in range(20)])
        file, log = snapshot(path)
    page = struct.unpack(">I", log[8:12])[0]
    frame = _FRAME_HEADER + page
    assert (len(log) - _WAL_HEADER) % frame == 0
    assert len(log) - len(before) > 3 * frame, "the last commit must have several frames to be torn between"
    cuts = [*range(len(before), len(log), frame), *range(len(log) - frame, len(log) + 1)]
    for cut in cuts:
        counted = _tasks_after(tmp_path / "torn.db", file, log[:cut])
        require("I1", counted == ((20, 20) if cut < len(log) else (40, 40)), (cut, len(log), counted))


def _tasks_after(path: Path, file: bytes, log: bytes) -> tuple[int, int]:
    """Tasks and micro-queue counters, as a program finds them that opens the file after a power cut."""
    path.write_bytes(file)
    Path(f"{path}-wal").write_bytes(log)
    Path(f"{path}-shm").unlink(missing_ok=True)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA synchronous = OFF")  # closing would checkpoint the log: thousands of times, on a disk
    row = db.execute("SELECT count(*), (SELECT sum(heads + waiting) FROM penstock_utube) FROM penstock_task").get
    db.close()
    return row  # type: ignore[no-any-return]


@pytest.mark.parametrize("lost", [1, 24, 4000, 4120, 4121, 10_000])
def test_a_broker_continues_after_a_torn_log(path: Path, tmp_path: Path, lost: int) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("t", kind="utube")
        for number in range(10):
            tube.put(number, utube=number % 3)
        task = tube.take(0)
        assert task is not None
        task.ack()
        file, log = snapshot(path)
    torn = tmp_path / "torn.db"
    torn.write_bytes(file)
    Path(f"{torn}-wal").write_bytes(log[:-lost])
    with penstock.connect(f"sqlite:///{torn}") as broker:
        assert broker.check() == []
        tube = broker.tube("t")
        ids = [task.id for task in tube.tasks()]
        require("I1", ids in (list(range(1, last + 1)) for last in range(11)) or ids == list(range(2, 11)), ids)
        newest = ids[-1]
        assert tube.put("after").id == newest + 1
        assert broker.check() == []


def test_a_damaged_frame_ends_the_log_there(path: Path, tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{path}") as broker:
        tube = broker.tube("t", kind="fifo")
        tube.put("before")
        _, before = snapshot(path)
        tube.put("after")
        file, log = snapshot(path)
    torn = tmp_path / "torn.db"
    torn.write_bytes(file)
    damaged = bytearray(log)
    damaged[len(before) + _FRAME_HEADER + 100] ^= 0xFF
    Path(f"{torn}-wal").write_bytes(damaged)
    with penstock.connect(f"sqlite:///{torn}") as broker:
        assert [task.data for task in broker.tube("t").tasks()] == ["before"]
