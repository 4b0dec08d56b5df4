"""The measurements behind decisions 0004 to 0006: `python docs/decisions/measure.py counters|locks|connection`.

The variants of one measurement are interleaved in one run, because only their ratio means anything on a busy computer.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw

import penstock
from penstock.runtime.liveness import Locks
from penstock.store.sql.migrations import load_migrations
from penstock.store.sqlite.sqlite_queries import Q

ROUNDS = 7


def say(line: str) -> None:
    """One line of the result."""
    sys.stdout.write(line + "\n")


def compare(variants: dict[str, Callable[[], float]]) -> None:
    """Run the variants in turn; the median of each, and its ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, run in variants.items():
            times[name].append(run())
    first = statistics.median(next(iter(times.values())))
    for name, found in times.items():
        middle = statistics.median(found)
        say(f"{name:44} {middle:9.1f} µs   {middle / first:5.2f} x   ({min(found):.1f} to {max(found):.1f})")


# 0004: one commit a put, with and without a write to the tube's counter row


def counters() -> None:
    """The same insert, its id derived from the newest task or counted in the tube's row."""
    with tempfile.TemporaryDirectory() as folder:
        derived = _Table(f"{folder}/derived.db", _derived_id)
        counted = _Table(f"{folder}/counted.db", _counted_id)
        compare({"put, id derived": derived.puts, "put, id and counters written": counted.puts})
        for name, table in {"derived": derived, "written": counted}.items():
            say(f"bytes of log a put, {name:24} {table.log_bytes():9.0f}")


class _Table:
    def __init__(self, path: str, next_id: Callable[[apsw.Connection], int]) -> None:
        self.path = path
        self.next_id = next_id
        self.done = 0
        self.db = apsw.Connection(path)
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for setting in ("journal_mode = wal", "synchronous = NORMAL", "wal_autocheckpoint = 0", "temp_store = MEMORY"):
            list(self.db.execute(f"PRAGMA {setting}"))
        for migration in load_migrations("penstock.store.sqlite"):
            self.db.execute(migration.sql)
        self.db.execute(Q.add_counter, (1,))
        self.db.execute("ALTER TABLE penstock_counter ADD COLUMN ready INTEGER NOT NULL DEFAULT 0")

    def puts(self, count: int = 3000) -> float:
        """Microseconds a put."""
        began = time.perf_counter()
        for _ in range(count):
            self.db.execute("BEGIN IMMEDIATE")
            key = 1 << 40 | self.next_id(self.db)
            self.db.execute(Q.insert, (key, 1, "r", 0, 0, 0, None, 0, None, None, None, None, None, b"x" * 100))
            self.db.execute("COMMIT")
        self.done += count
        return (time.perf_counter() - began) / count * 1e6

    def log_bytes(self) -> float:
        """Bytes of write-ahead log a put; nothing was checkpointed."""
        return Path(f"{self.path}-wal").stat().st_size / self.done


def _derived_id(db: apsw.Connection) -> int:
    floor, newest = db.execute(Q.newest, (1, 2 << 40)).get
    return int(max(floor, (newest or 0) - (1 << 40))) + 1


def _counted_id(db: apsw.Connection) -> int:
    query = "UPDATE penstock_counter SET last_id = last_id + 1, ready = ready + 1 WHERE tube = ?1 RETURNING last_id"
    return int(db.execute(query, (1,)).get)


# 0005: OS locks


def locks() -> None:
    """What each sort of lock tells two descriptors of one process, the price of a look, and a killed taker."""
    _meanings()
    _price_of_a_look(100)
    _kills(10)


def _meanings() -> None:
    record = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    tries: dict[str, Callable[[int], object]] = {
        "POSIX record lock": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLK, record),
        "flock": lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "OFD lock": lambda fd: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, record),
    }
    for name, lock in tries.items():
        with tempfile.NamedTemporaryFile() as file:
            holder, other = (os.open(file.name, os.O_RDWR) for _ in range(2))
            lock(holder)
            try:
                lock(other)
                say(f"{name:20} the process's second descriptor takes the lock too")
            except OSError:
                say(f"{name:20} the process's second descriptor is refused")
            os.close(other)
            os.close(holder)


def _price_of_a_look(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mine, theirs = (Locks(Path(folder), "one") for _ in range(2))
        for number in range(count):
            mine.hold(f"handle{number}")
        began = time.perf_counter()
        for _ in range(100):
            assert theirs.dead() == []
        say(f"a look at {count} live peers: {(time.perf_counter() - began) / 100 * 1e6:.0f} µs")


def _kills(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PENSTOCK_LOCKS"] = folder
        url = f"sqlite:///{folder}/queue.db"
        with penstock.connect(url) as broker:
            tube = broker.tube("work", "fifo")
            tube.put(1)
            waits = [_killed(url, tube) for _ in range(count)]
    say(f"kill -9 to the task's next hand-out, {count} times: {min(waits):.2f} to {max(waits):.2f} s")


def _killed(url: str, tube: penstock.Tube) -> float:
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with penstock.connect(url) as broker:
            broker.tube("work").take()
            os.write(tell, b"!")
            time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    pause = random.uniform(0.2, 0.8)  # so that the kill falls anywhere between two looks
    threading.Timer(pause, os.kill, (child, signal.SIGKILL)).start()
    began = time.monotonic() + pause
    task = tube.take(timeout=10)
    assert task is not None
    waited = time.monotonic() - began
    task.release()
    os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
    return waited


# 0006: threads on one connection, or on one each


def connection() -> None:
    """Four threads put, through one broker (one connection) or through one each: the mean, and the slowest put."""
    for durability in ("relaxed", "full"):
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/queue.db?durability={durability}"
            brokers = [penstock.connect(url) for _ in range(4)]
            tubes = [broker.tube("work", "fifo") for broker in brokers]
            runs = {f"one connection, {durability}": tubes[:1] * 4, f"a connection a thread, {durability}": tubes}
            for measure in (statistics.mean, max):
                say(f"{measure.__name__} of a put")
                compare({name: partial(_threads, tubes, measure) for name, tubes in runs.items()})
            for broker in brokers:
                broker.close()


def _threads(tubes: list[penstock.Tube], measure: Callable[[list[float]], float], count: int = 500) -> float:
    times: list[float] = []

    def work(tube: penstock.Tube) -> None:
        for _ in range(count):
            began = time.perf_counter()
            tube.put("x" * 100)
            times.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(tube,)) for tube in tubes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return measure(times) * 1e6


if __name__ == "__main__":
    {"counters": counters, "locks": locks, "connection": connection}[sys.argv[1]]()
