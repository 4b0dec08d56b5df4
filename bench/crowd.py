"""Several producers and several workers on one SQLite file, compared with the same setup of huey."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import peer_queues
from bench.peers import marks
from bench.reporting import Line, Size, Target

PRODUCERS = 4
WORKERS = 4
# If no task was run for this many seconds, the missing ones are lost.
PATIENCE = 20.0
_OURS = ("-m", "penstock", "worker", "bench.noop:app", "--tubes", "marks")
_HUEY = ("-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "-w", "1", "-n", "-q")


@dataclass(frozen=True, slots=True)
class Crowd:
    """A queue's Python, the module that puts, and its worker's arguments."""

    python: str
    module: str
    worker: Sequence[str]


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks per second from the common start to the last run, and how many were lost or run twice."""

    rate: float
    lost: int
    twice: int


def crowd(size: Size) -> Iterator[Line]:
    """4 producers (ours with put_many of 10) and 4 workers; every commit is on disk, and each task must run once."""
    tasks, fewer = size.pick(4_000, 20_000), size.pick(800, 2_000)
    huey = Crowd(peer_queues.PYTHON, "bench.peers.huey_app", _HUEY)
    ours, why_not = Crowd(sys.executable, "bench.noop", _OURS), peer_queues.missing("huey")
    runs: list[Run] = []
    theirs: list[float] = []
    for _ in range(size.pick(1, 3)):
        runs.append(_measure(ours, "ours.db", tasks))
        if why_not is None:
            theirs.append(_measure(huey, "huey.db", fewer).rate)
    name, rate = "SQLite FULL: 4 producers, 4 workers", median(run.rate for run in runs)
    if why_not is not None:
        yield Line(f"{name}, huey", rate, "/s", note=f"not measured: huey: {why_not}")
    else:
        ratio = median(run.rate / other for run, other in zip(runs, theirs, strict=True))
        yield Line(f"{name}, huey", rate, "/s", median(theirs), ratio, (Target("T11", 5, "× huey FULL"),))
    lost, twice = sum(run.lost for run in runs), sum(run.twice for run in runs)
    note = f"{len(runs) * tasks:,} tasks, {lost} lost, {twice} twice"
    yield Line(f"{name}: faults", lost + twice, "tasks", targets=(Target("T11", 0, "", at_most=True),), note=note)


def _measure(crowd: Crowd, file: str, tasks: int) -> Run:
    share = tasks // PRODUCERS
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        url, path = f"sqlite:///{folder / file}", folder / "marks"
        path.touch()
        environment = {**os.environ, "BENCH_PEER_URL": url, "PENSTOCK_URL": url, "BENCH_MARKS": str(path)}
        for _ in range(WORKERS):
            opened.enter_context(_process([crowd.python, *crowd.worker], environment))
        command = [crowd.python, "-m", "bench.peers.produce", crowd.module]
        producers = [
            opened.enter_context(_process([*command, str(part * share), str(share)], environment))
            for part in range(PRODUCERS)
        ]
        for producer in producers:
            assert producer.stdout is not None
            producer.stdout.readline()
        time.sleep(2)  # until the workers are idle
        began = time.perf_counter()
        for producer in producers:
            assert producer.stdin is not None
            producer.stdin.write("go\n")
            producer.stdin.flush()
        seconds = _last_mark(path, tasks) - began
        got = marks.read(path)
    return Run(len(got) / seconds, tasks - len(set(got)), len(got) - len(set(got)))


def _last_mark(path: Path, tasks: int) -> float:
    """The time when all tasks were run, or the last of those that ran."""
    seen, changed = 0, time.perf_counter()
    while seen < tasks and time.perf_counter() - changed < PATIENCE:
        if (now := marks.count(path)) > seen:
            seen, changed = now, time.perf_counter()
        time.sleep(0.005)
    return changed


@contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()
