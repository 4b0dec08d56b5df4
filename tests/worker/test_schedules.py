"""Schedules inside worker processes: several of them, one killed, each tick run once."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise

import penstock
from penstock.schedule import schedule_status
from tests.support.threads import until
from tests.support.worker_process import Program

TARGET = "tests.worker.schedule_app:app"


def ran(reports: penstock.Tube) -> list[tuple[int, int]]:
    """The ticks that ran, in order, and their tasks. A tick whose worker was killed after its report runs again."""
    return sorted({(data[0], data[1]) for task in reports.tasks(limit=1000) if isinstance(data := task.data, list)})


def gaps(ticks: list[tuple[int, int]]) -> set[int]:
    return {later - earlier for (earlier, _), (later, _) in pairwise(ticks)}


def test_each_tick_is_run_once_by_several_workers_of_which_one_dies(url: str) -> None:
    with penstock.connect(url) as broker, ExitStack() as started:
        reports = broker.tube("ticks")
        programs = [started.enter_context(Program(url, target=TARGET)) for _ in range(3)]
        for program in programs:
            program.await_log("worker on")
        until(lambda: reports.stats().tasks.ready >= 8, 60)
        programs[0].kill()
        # The tick of the killed worker comes after later ones: a gap that closes is none.
        until(lambda: len(ticks := ran(reports)) >= 20 and gaps(ticks) == {250}, 60)
        until(lambda: schedule_status.listed(broker.tube("penstock.schedule"))[0].last is not None, 10)
        assert [program.stop() for program in programs[1:]] == [0, 0]
        assert 0 not in gaps(ran(reports))  # no tick had two tasks
        assert broker.check() == []
