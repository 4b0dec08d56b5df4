"""A settle whose answer was lost is retried: if the first try was applied, the lease is not reported as lost."""

from __future__ import annotations

import pytest

import penstock
from penstock.app.app import App
from penstock.core.lifecycle import Move
from penstock.core.task import record_of
from penstock.operations.store_ops import settle
from penstock.worker import settlement
from penstock.worker.running_task import RunningTask
from penstock.worker.settler import applied_before
from tests.support.threads import until
from tests.support.verbs import take
from tests.worker.conftest import Run


def test_moves_that_were_applied_before_count(store_url: str) -> None:
    with penstock.connect(store_url) as broker, broker.session() as other:
        tube = broker.tube("t")
        tube.put_many(range(6))
        tasks = tube.take_many(4)
        session = tube.session_handle.number
        verbs = ("ack", "release", "bury", "ack")
        moves = [
            Move(
                verb, task.id, session, record_of(task).lease, seen=record_of(task), extra=60_000 * (verb == "release")
            )
            for verb, task in zip(verbs, tasks, strict=True)
        ]
        tube.release(tasks[3])
        assert [record is not None for record in settle(tube.runtime, tube.stored, moves)] == [True, True, True, False]
        taken = other.tube("t").take(0)
        assert taken is not None
        assert taken.id == tasks[3].id
        again = settle(tube.runtime, tube.stored, moves)
        assert again == [None] * 4
        counted = applied_before(tube, moves, again)
        assert [record is not None for record in counted] == [True, True, True, False]


def test_a_lost_lease_is_logged_only_if_a_result_is_dropped(
    app: App, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    worker, tube = run("others"), app.broker.tube("default")
    for ended in (settlement.unstarted, settlement.stopped):
        tube.put(None)
        task = take(tube)
        tube.cancel(task.id)
        item = RunningTask(task, tube, tube.session_handle.number, 0)
        worker.state.settler.add(item, ended(item))
    until(lambda: worker.state.stats.lost == 2)
    assert caplog.text.count("its result is dropped") == 1
