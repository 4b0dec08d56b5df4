"""Schedules inside worker processes: several of them, one killed, each tick run once."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise

import penstock
from tests.behaviour.helpers import until
from tests.worker.program import Program

TARGET = "tests.worker.ticking:app"


def list_of(data: object) -> tuple[int, int]:
    assert isinstance(data, list)
    return int(data[0]), int(data[1])


def test_each_tick_is_run_once_by_several_workers_of_which_one_dies(url: str) -> None:
    with penstock.connect(url) as broker, ExitStack() as started:
        said = broker.tube("ticks")
        programs = [started.enter_context(Program(url, target=TARGET)) for _ in range(3)]
        for program in programs:
            program.await_log("worker on")
        until(lambda: said.stats().tasks.ready >= 8, 20)
        programs[0].kill()
        until(lambda: said.stats().tasks.ready >= 20, 20)
        assert [program.stop() for program in programs[1:]] == [0, 0]
        # A set: a task whose worker was killed after it spoke is run again, and is the same task.
        ticks = sorted({(tick, id) for tick, id in (list_of(task.data) for task in said.tasks(limit=1000))})
        assert {later - earlier for (earlier, _), (later, _) in pairwise(ticks)} == {250}
        assert broker.check() == []
