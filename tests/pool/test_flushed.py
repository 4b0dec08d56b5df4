"""FLUSHALL in the middle of a run of several processes: what was stored is done or still there, once."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import penstock
from tests.servers.redis import Redis

NAMES = "abc"
FLUSHES = 4


def work(front: str, database: str, name: str, history: Path) -> None:
    """Put, take and ack without end; a line of the history before each ack, and one when a call has returned."""
    with penstock.connect(front, pool=database) as broker, history.open("a", buffering=1) as told:
        tube = broker.tube("t")
        number = 0
        while True:
            number += 1
            data = f"{name}-{number}"
            try:
                tube.put(data)
                told.write(f"put {data}\n")
            except penstock.OutcomeUnknown:
                told.write(f"maybe {data}\n")
            task = tube.take(0)
            if task is None:
                continue
            told.write(f"try {task.data}\n")
            try:
                task.ack()
                told.write(f"ack {task.data}\n")
            except penstock.NotTaken:
                pass
            except penstock.OutcomeUnknown:
                told.write(f"unsure {task.data}\n")


def start(front: str, database: str, folder: Path) -> list[int]:
    children = []
    for name in NAMES:
        child = os.fork()
        if not child:
            try:
                work(front, database, name, folder / name)
            finally:
                os._exit(1)
        children.append(child)
    return children


def lines(folder: Path, name: str) -> list[tuple[str, str]]:
    """What a process told, without a line that it did not finish: verb and data."""
    text = (folder / name).read_text() if (folder / name).exists() else ""
    found = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(verb, data) for verb, data in found]


def wait_for_acks(folder: Path, more: int) -> None:
    """Until every process has come so much further."""
    goals = {name: acks(folder, name) + more for name in NAMES}
    deadline = time.monotonic() + 60
    while any(acks(folder, name) < goal for name, goal in goals.items()):
        assert time.monotonic() < deadline, "they do not go on"
        time.sleep(0.02)  # files say nothing but by growing


def acks(folder: Path, name: str) -> int:
    return sum(verb == "ack" for verb, _ in lines(folder, name))


def test_a_flush_in_the_middle_of_a_run_loses_nothing(front: str, database: str, server: Redis, tmp_path: Path) -> None:
    children = start(front, database, tmp_path)
    try:
        for _ in range(FLUSHES):
            wait_for_acks(tmp_path, 5)
            server.ask("FLUSHALL")
        wait_for_acks(tmp_path, 5)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    history = [line for name in NAMES for line in lines(tmp_path, name)]
    stored = {data for verb, data in history if verb == "put"}
    acked = Counter(data for verb, data in history if verb == "ack")
    last = {lines(tmp_path, name)[-1] for name in NAMES}  # a killed process could not tell how its last ack ended
    unsure = {data for verb, data in history if verb == "unsure"} | {data for verb, data in last if verb == "try"}
    with penstock.connect(front, pool=database) as broker:
        left = Counter(str(task.data) for task in broker.tube("t").tasks(limit=10_000))
        assert broker.check() == []
    assert max(acked.values()) == 1, "acked twice"
    assert not left.keys() & acked.keys(), "what was acked came back"
    assert max(left.values(), default=1) == 1, "stored twice"
    assert stored <= acked.keys() | left.keys() | unsure, "lost"
