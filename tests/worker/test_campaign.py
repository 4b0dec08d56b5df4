"""Workers killed at random: nothing is lost, nothing runs twice at once, and every repetition is explained."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.app.app import App
from tests.support.threads import until
from tests.support.worker_process import Program
from tests.worker import jobs
from tests.worker.conftest import Start

TASKS = 600
KILLS = 5


class Run(NamedTuple):
    start: float
    end: float | None  # None: its process was killed
    lease: int


def runs_of(journal: Path) -> dict[tuple[str, str], list[Run]]:
    """The runs of each task, in order."""
    moments: dict[tuple[str, str, str, int], float] = {}
    for line in journal.read_text().splitlines():
        what, tube, id, lease, _, at = line.split()
        moments[what, tube, id, int(lease)] = float(at)
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for (what, tube, id, number), moment in sorted(moments.items(), key=lambda pair: pair[1]):
        if what == "start":
            found[tube, id].append(Run(moment, moments.get(("end", tube, id, number)), number))
    return found


@pytest.mark.timeout(900)
def test_killed_workers_lose_nothing_and_run_nothing_twice_at_once(app: App, start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    jobs.journal.put_many([str(journal)] * TASKS)
    jobs.journal_process.put_many([str(journal)] * (TASKS // 10))
    chance = random.Random(5)
    workers: list[Program] = [start("--concurrency", "4", "--processes", "1") for _ in range(2)]
    kills: list[tuple[float, float]] = []  # from, until: the exact time of its death is not known
    tubes = [app.broker.tube(name) for name in ("campaign", "campaign-processes")]
    for done in range(TASKS // 10, TASKS, TASKS // 10)[:KILLS]:
        until(partial(lambda least: sum(tube.stats().tasks.done for tube in tubes) >= least, done), 120)
        victim = workers.pop(chance.randrange(len(workers)))
        began = time.monotonic()
        victim.kill()
        kills.append((began, time.monotonic()))
        workers.append(start("--concurrency", "4", "--processes", "1"))
    until(lambda: sum(tube.stats().tasks.total for tube in tubes) == 0, 120)
    assert [worker.stop() for worker in workers] == [0, 0]
    assert [tube.stats().calls.ack for tube in tubes] == [TASKS, TASKS // 10]
    runs = runs_of(journal)
    assert len(runs) == TASKS + TASKS // 10
    for each in runs.values():
        assert [run.lease for run in each] == sorted({run.lease for run in each})
        for earlier, later in pairwise(each):
            causes = [began for began, dead in kills if earlier.start < dead and began < later.start]
            assert causes, "it ran again without a cause"
            assert (earlier.end or causes[0]) < later.start, "it ran twice at once"
