"""Takes while tasks of a cancelled group are ahead of others: what each store call finds, removes and costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import penstock
from penstock.core.results import ADVANCE_STEP

# Measures the work of one call.
Cost = Callable[[Callable[[], object]], int]
SIZE = 5 * ADVANCE_STEP
# Takes that find nothing left to remove.
AFTER = 2


def clearing(step: int) -> int:
    """How many takes remove the whole group; the cancel itself removes the first step."""
    return SIZE // step - 1


class Call(NamedTuple):
    """One take call of the store."""

    found: int
    cleared: int
    cost: int


def calls_of(tube: penstock.Tube, wanted: int, cost: Cost) -> list[Call]:
    """Take one task after the other, with one store call each."""
    calls: list[Call] = []
    found: list[penstock.Task] = []

    def call() -> None:
        tasks, taken = tube.session_handle.take_now([tube], 1, None, None)
        assert [task.data for task in tasks] in ([], ["behind"])
        found.extend(tasks)
        calls.append(Call(len(tasks), taken.effects.removed.get(tube.stored.no, 0), 0))

    while len(found) < wanted:
        work = cost(call)
        calls[-1] = calls[-1]._replace(cost=work)
    tube.ack_many(found)
    return calls


def put_behind(tube: penstock.Tube, count: int) -> None:
    """Put other work behind the group, each task in its own micro-queue if the kind has them."""
    per_utube = tube.stored.kind.per_utube
    tube.put_many(("behind", {"utube": f"u{n}"} if per_utube else {}) for n in range(count))


def plain_cost(tube: penstock.Tube, cost: Cost) -> int:
    """The cost of a take with nothing in its way: the median, because a heartbeat may interfere."""
    put_behind(tube, 5)
    return sorted(call.cost for call in calls_of(tube, 5, cost))[2]


def takes_after_cancel(tube: penstock.Tube, cost: Cost, step: int = ADVANCE_STEP) -> list[Call]:
    """Cancel a ready group with one taken task, and take the tasks behind it."""
    wanted = clearing(step) + AFTER
    group, per_utube = tube.group("g"), tube.stored.kind.per_utube
    group.put_many((n, {"utube": n} if per_utube else {}) for n in range(SIZE))
    group.start()
    assert tube.stats().tasks.ready == SIZE  # all tasks are ready
    put_behind(tube, wanted)
    assert tube.take(0) is not None
    group.cancel()
    return calls_of(tube, wanted, cost)


def must_clear_in_steps(calls: list[Call], step: int = ADVANCE_STEP) -> None:
    """Assert that every take is one call that finds its task and removes one step, until nothing is left to remove."""
    assert [(call.found, call.cleared) for call in calls] == [(1, step)] * clearing(step) + [(1, 0)] * AFTER
