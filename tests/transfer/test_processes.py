"""Tubes move while producers and workers of other processes use them, by a command that is killed many times."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import penstock
from tests.conftest import STORES
from tests.support.peer import environment
from tests.transfer.following_client import TUBE

pytestmark = pytest.mark.timeout(600)

# Of each sort; fewer where each ack is a separate commit.
BACKLOG, FEW = 500, 200
PATIENCE = 250


@contextmanager
def program(role: str, *urls: str) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the tube."""
    words = [sys.executable, "-m", "tests.transfer.following_client", role, *urls]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def numbers_of(process: subprocess.Popen[str]) -> list[int]:
    """Stop the process. Returns the numbers that it put or ran."""
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return list(json.loads(output))


def move(old: str, new: str) -> int:
    """Repeat the move until it is done, killed after longer and longer times. Returns the number of kills."""
    words = [sys.executable, "-m", "penstock", "move", old, new, "--tube", TUBE]
    seconds, killed = 0.1, 0  # less than any machine needs
    while True:
        try:
            # A timeout ends it by SIGKILL.
            done = subprocess.run(words, env=environment(), check=False, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            seconds, killed = seconds * 1.5, killed + 1
        else:
            assert done.returncode == 0, done.stderr.decode()
            return killed


PAIRS = [("sqlite", "postgres"), ("redis", "pool-sqlite"), ("pool-sqlite", "mariadb")]


@pytest.mark.parametrize("sides", PAIRS, ids="-".join)
def test_nothing_is_lost_or_run_twice(sides: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    urls = old, new = tuple(STORES[name](tmp_path) for name in sides)
    backlog = FEW if "pool-sqlite" in sides else BACKLOG
    shards = 3 if sides[0] == "redis" else None
    with penstock.connect(old) as broker:
        broker.tube(TUBE, shards=shards).put_many(range(backlog), delay=3600)
        broker.tube(TUBE).put_many(range(backlog, 2 * backlog), pri=1)
    with ExitStack() as started:
        producers = [started.enter_context(program("put", *urls))]
        workers = [started.enter_context(program("run", *urls)) for _ in range(2)]
        assert move(old, new) > 0
        put = [number for process in producers for number in numbers_of(process)]
        ran = [number for process in workers for number in numbers_of(process)]
    assert sorted(ran) == [*range(backlog, 2 * backlog), *sorted(put)]
    with penstock.connect(new) as broker:
        tube = broker.tube(TUBE)
        assert [task.data for task in tube.tasks(limit=10_000)] == list(range(backlog))
        assert tube.stats().tasks.total == backlog
        assert tube.stats().calls.put == 2 * backlog + len(put)
        assert tube.stats().calls.ack == backlog + len(put)
        assert broker.check() == []
