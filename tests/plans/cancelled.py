"""Takes while the tasks of a cancelled group still stand before others, one store call after the other."""

from __future__ import annotations

from collections.abc import Callable

import penstock

# Counts the work of one call.
Cost = Callable[[Callable[[], object]], int]
# More than the steps that clear away the first tasks, so that a take costs what it costs in any larger group.
SIZES = (4_000, 12_000)
# Takes after the first that found something.
LATER = 3


def dearest_take(tube: penstock.Tube, size: int, cost: Cost) -> int:
    """What a store call costs at most, until a few takes found the tasks behind the group."""
    laned = tube._stored.kind.per_utube
    group = tube.group("g")
    group.put_many((n, {"utube": n} if laned else {}) for n in range(size))
    group.start()
    assert tube.stats().tasks.ready == size  # all of it is ready
    tube.put_many(("behind", {"utube": f"u{n}"} if laned else {}) for n in range(LATER + 1))
    assert tube.take(0) is not None  # the session is there
    group.cancel()
    found: list[list[penstock.Task]] = []
    calls: list[int] = []
    while sum(map(bool, found)) <= LATER:
        calls.append(cost(lambda: found.append(tube._seat.attempt([tube], 1, None, None)[0])))
    assert [task.data for tasks in found for task in tasks] == ["behind"] * (LATER + 1)
    first = next(place for place, tasks in enumerate(found) if tasks)
    assert all(found[first:]), "a later take met cancelled tasks again"
    return max(calls)
