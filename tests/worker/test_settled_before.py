"""A settle whose answer was lost is retried: if the first try was applied, the lease is not reported as lost."""

from __future__ import annotations

import penstock
from penstock.core.lifecycle import Move
from penstock.core.task import record_of
from penstock.operations.store_ops import settle
from penstock.worker.settler import applied_before


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
