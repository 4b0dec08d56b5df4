"""One side of `python -m bench --against`: runs scenarios on the penstock that PYTHONPATH names, and times them.

Started as a script, once for each commit. It answers JSON lines: a name asks for the first step of that scenario, null
for the next one; the answer has the line that the step measured, the number of tasks and the seconds, or an error.
It must run with both commits, so it uses public names only; `_settle_many` is the exception.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import penstock

DATA = "x" * 100
RESULT = "r" * 20
MANY = 1000
QUEUED = 10_000
UTUBES = 1000
DRAIN = 500
# Seconds: leases and delays that end while the other side is not measured.
SHORT = 0.03

# A line's name, how many tasks, in how many seconds.
Step = tuple[str, int, float]


@dataclass(frozen=True)
class Stage:
    """A broker, and how much to measure: calls of one task each, and repetitions of those with many."""

    broker: penstock.Broker
    singles: int
    repeats: int
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def many(self) -> int:
        """How many tasks the repeated calls of 1,000 move."""
        return MANY * self.repeats

    def tube(self, name: str, kind: str = "fifottl", *, ttr: float | None = None) -> penstock.Tube:
        """An empty tube, the same one in each round."""
        tube = self.broker.tube(name, kind, ttr=ttr)
        tube.truncate()
        return tube


Scenario = Callable[[Stage], Iterator[Step]]


def singles(stage: Stage) -> Iterator[Step]:
    """One task a call."""
    tube, tasks = stage.tube("singles"), stage.singles
    yield "put", tasks, _spent(lambda: [tube.put(DATA) for _ in range(tasks)])
    taken: list[penstock.Task | None] = []
    yield "take", tasks, _spent(lambda: taken.extend(tube.take(0) for _ in range(tasks)))
    held = [task for task in taken if task is not None]
    assert len(held) == tasks
    yield "ack", tasks, _spent(lambda: [tube.ack(task) for task in held])
    tube.put_many([DATA] * tasks)
    yield "take+ack", tasks, _spent(lambda: _pairs(tube, tasks))
    ids = [task.id for task in tube.put_many([DATA] * tasks)]
    yield "delete", tasks, _spent(lambda: [tube.delete(id) for id in ids])
    assert not len(tube)


def _pairs(tube: penstock.Tube, tasks: int) -> None:
    for _ in range(tasks):
        task = tube.take(0)
        assert task is not None
        tube.ack(task)


def hundreds(stage: Stage) -> Iterator[Step]:
    """100 tasks a call."""
    tube, calls = stage.tube("hundreds"), 10 * stage.repeats
    yield "put-100", calls * 100, _spent(lambda: [tube.put_many([DATA] * 100) for _ in range(calls)])
    taken: list[list[penstock.Task]] = []
    yield "take-100", calls * 100, _spent(lambda: taken.extend(tube.take_many(100) for _ in range(calls)))
    assert all(len(tasks) == 100 for tasks in taken)
    yield "ack-100", calls * 100, _spent(lambda: [tube.ack_many(tasks) for tasks in taken])
    assert not len(tube)


def thousands(stage: Stage) -> Iterator[Step]:
    """1,000 tasks a call."""
    tube, calls = stage.tube("thousands"), range(stage.repeats)
    yield "put-1000", stage.many, _spent(lambda: [tube.put_many([DATA] * MANY) for _ in calls])
    held = [_take(tube) for _ in calls]
    yield "ack-1000", stage.many, _spent(lambda: [tube.ack_many(tasks) for tasks in held])
    assert not len(tube)


def addresses(stage: Stage) -> Iterator[Step]:
    """1,000 tasks a call, each with an address, which keeps how it ended: without a result, and with one."""
    tube, calls = stage.tube("addresses"), range(stage.repeats)
    batches = [[(DATA, {"address": f"a{next(stage.numbers)}"}) for _ in range(MANY)] for _ in calls]
    yield "put-addressed", stage.many, _spent(lambda: [tube.put_many(items) for items in batches])
    held = [_take(tube) for _ in calls]
    yield "ack-addressed", stage.many, _spent(lambda: [tube.ack_many(tasks) for tasks in held])
    for _ in calls:
        tube.put_many([(DATA, {"address": f"a{next(stage.numbers)}"}) for _ in range(MANY)])
    held = [_take(tube) for _ in calls]
    yield "ack-results", stage.many, _spent(lambda: [_settle_many(tube, "ack", tasks, RESULT) for tasks in held])
    assert not len(tube)


def groups(stage: Stage) -> Iterator[Step]:
    """1,000 tasks a call, the work of a group, which ends with the last of them."""
    tube, calls = stage.tube("groups"), range(stage.repeats)
    begun = [tube.group(f"g{next(stage.numbers)}") for _ in calls]
    yield "put-group", stage.many, _spent(lambda: [group.put_many([DATA] * MANY) for group in begun])
    for group in begun:
        group.start()
    held = [_take(tube) for _ in calls]
    yield "ack-group", stage.many, _spent(lambda: [tube.ack_many(tasks) for tasks in held])
    assert not len(tube)


def releases(stage: Stage) -> Iterator[Step]:
    """1,000 taken tasks are released in one call, and by the end of the session that holds them."""
    tube, calls = stage.tube("releases"), range(stage.repeats)
    tube.put_many([DATA] * MANY)
    yield "release-all", stage.many, sum(_spent(tube.release_all, lambda: _take(tube)) for _ in calls)
    seconds = 0.0
    for _ in calls:
        session = stage.broker.session()
        _take(session.tube("releases"))
        seconds += _spent(session.close)
        assert tube.stats().tasks.ready == MANY
    yield "session-end", stage.many, seconds


def dues(stage: Stage) -> Iterator[Step]:
    """1,000 leases that have lapsed, and 1,000 delays that have ended: stats() applies what is due."""
    lapsing, delayed, seconds = stage.tube("lapsing", ttr=SHORT), stage.tube("delayed"), 0.0
    lapsing.put_many([DATA] * MANY)
    for _ in range(stage.repeats):
        _take(lapsing)
        seconds += _spent(lapsing.stats, _pause)
        assert lapsing.stats().tasks.ready == MANY
    yield "lapse", stage.many, seconds
    seconds = 0.0
    for _ in range(stage.repeats):
        delayed.put_many([DATA] * MANY, delay=SHORT)
        seconds += _spent(delayed.stats, _pause)
        assert delayed.stats().tasks.ready == MANY
        delayed.ack_many(_take(delayed))
    yield "delay", stage.many, seconds


def buries(stage: Stage) -> Iterator[Step]:
    """1,000 taken tasks are buried in one call, and kicked in another."""
    tube, calls = stage.tube("buries"), range(stage.repeats)
    for _ in calls:
        tube.put_many([DATA] * MANY)
    held = [_take(tube) for _ in calls]
    yield "bury", stage.many, _spent(lambda: [_settle_many(tube, "bury", tasks) for tasks in held])
    assert tube.stats().tasks.buried == stage.many
    yield "kick", stage.many, _spent(lambda: [tube.kick(MANY) for _ in calls])
    assert tube.stats().tasks.ready == stage.many


def plain(stage: Stage) -> Iterator[Step]:
    """10,000 tasks in a call, taken and acked 500 at a time."""
    tube = stage.tube("plain")
    yield "put-10000", QUEUED, _spent(lambda: tube.put_many([DATA] * QUEUED))
    yield "drain-500", QUEUED, _spent(lambda: _drain(tube))
    assert not len(tube)


def utubes(stage: Stage) -> Iterator[Step]:
    """As plain, in 1,000 micro-queues."""
    tube = stage.tube("utubes", "utubettl")
    items = [(DATA, {"utube": number % UTUBES}) for number in range(QUEUED)]
    yield "put-10000-utubes", QUEUED, _spent(lambda: tube.put_many(items))
    yield "drain-500-utubes", QUEUED, _spent(lambda: _drain(tube))
    assert not len(tube)


def _drain(tube: penstock.Tube) -> None:
    while tasks := tube.take_many(DRAIN):
        tube.ack_many(tasks)


# name -> the scenario, and the lines of its steps in order
SCENARIOS: dict[str, tuple[Scenario, tuple[str, ...]]] = {
    "singles": (singles, ("put", "take", "ack", "take+ack", "delete")),
    "hundreds": (hundreds, ("put-100", "take-100", "ack-100")),
    "thousands": (thousands, ("put-1000", "ack-1000")),
    "addresses": (addresses, ("put-addressed", "ack-addressed", "ack-results")),
    "groups": (groups, ("put-group", "ack-group")),
    "releases": (releases, ("release-all", "session-end")),
    "dues": (dues, ("lapse", "delay")),
    "buries": (buries, ("bury", "kick")),
    "plain": (plain, ("put-10000", "drain-500")),
    "utubes": (utubes, ("put-10000-utubes", "drain-500-utubes")),
}


def _spent(work: Callable[[], object], before: Callable[[], object] | None = None) -> float:
    """Seconds that the work takes, after what must come before it."""
    if before is not None:
        before()
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _take(tube: penstock.Tube) -> list[penstock.Task]:
    tasks = tube.take_many(MANY)
    assert len(tasks) == MANY
    return tasks


def _pause() -> None:
    """Wait until what is SHORT has ended; nobody waits in a take, so the store does nothing about it meanwhile."""
    time.sleep(2 * SHORT)


def _settle_many(tube: penstock.Tube, verb: str, tasks: list[penstock.Task], result: str | None = None) -> bool:
    """Settle tasks in one store call, as a worker does: no public verb buries many, or acks many with results.

    A commit that does it otherwise needs another branch here.
    """
    from penstock.core import codec

    payload = None if result is None else codec.encode(result)
    settled = tube._settle_now([tube._move(verb, task, result=payload) for task in tasks])
    return None not in settled


def main() -> None:
    """Answer the parent until it closes the pipe."""
    url, singles, repeats = sys.argv[1:]
    steps: Iterator[Step] = iter(())
    with penstock.connect(url) as broker:
        stage = Stage(broker, int(singles), int(repeats))
        print(json.dumps(penstock.__file__), flush=True)
        for line in sys.stdin:
            if (scenario := json.loads(line)) is not None:
                steps = SCENARIOS[scenario][0](stage)
            try:
                answer: object = next(steps)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
