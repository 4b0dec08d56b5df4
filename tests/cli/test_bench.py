"""`penstock bench` measures every kind of work and leaves nothing behind."""

from __future__ import annotations

from uuid import uuid4

import pytest

import penstock
from penstock.broker.tube import Tube
from penstock.cli import bench
from penstock.testing import Clock
from tests.support.shell import Shell


def test_bench_measures_and_leaves_nothing(shell: Shell) -> None:
    found = shell.json("bench", "--seconds", "0.2")
    works = ["put", "put_many of 100", "take and ack", "take_many and ack_many of 100"]
    assert [phase["work"] for phase in found["phases"]] == works
    assert all(phase["tasks"] > 0 and phase["per_second"] > 0 for phase in found["phases"])
    assert found["store"] == "SQLite"
    assert shell.json("tubes") == []


def test_slow_puts_leave_tasks_for_the_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    put_many, clock = Tube.put_many, Clock(0)

    def slow(tube: Tube, data: list[bytes]) -> list[penstock.Task]:
        clock.advance(1)
        return put_many(tube, data)

    monkeypatch.setattr(Tube, "put_many", slow)
    monkeypatch.setattr(bench, "_put", lambda tube, data: len(slow(tube, [data])))
    monkeypatch.setattr("time.perf_counter", lambda: clock.seconds)  # it does not change while tasks are taken
    with penstock.connect(f"memory://{uuid4().hex}") as broker:
        phases = list(bench.measured(broker.tube("t"), 1, b"x"))
    assert [phase.tasks for phase in phases] == [1, 100, 101, 100]


def test_bench_refuses_kinds_that_it_cannot_measure_and_leaves_nothing(shell: Shell) -> None:
    assert "kind" in shell.refused("bench", "--kind", "nonsense")
    assert shell.refused("bench", "--kind", "round", "--seconds", "0.1") != ""
    assert shell.json("tubes") == []
