"""One side of `python -m bench --against`: runs scenarios on the penstock that PYTHONPATH names, and times them.

Started as a script, once for each commit. It answers JSON lines: a name asks for the first step of that scenario, null
for the next one; the answer has the line that the step measured, the tasks of one unit of its work and the seconds of
each unit, or an error. It must run with both commits, so it uses public names only; `_settle_many` is the exception.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import penstock

T = TypeVar("T")

DATA = "x" * 100
RESULT = "r" * 20
MANY = 1000
QUEUED = 10_000
UTUBES = 1000
DRAIN = 500
# Seconds: leases and delays that end while the other side is not measured.
SHORT = 0.03

# Calls of one task are timed by tens.
TEN = 10

# A line's name, how many tasks are one unit of it, and the seconds of each unit.
Step = tuple[str, int, list[float]]


@dataclass(frozen=True)
class Stage:
    """A broker, and how many units to measure: of ten calls of one task each, and of one call of 1,000."""

    broker: penstock.Broker
    tens: int
    thousands: int
    numbers: Iterator[int] = field(default_factory=count)

    def tube(self, name: str, kind: str = "fifottl", *, ttr: float | None = None) -> penstock.Tube:
        """The tube of that name, emptied."""
        tube = self.broker.tube(name, kind, ttr=ttr)
        tube.truncate()
        return tube

    def addressed(self) -> list[tuple[str, dict[str, str]]]:
        """1,000 items with new addresses."""
        return [(DATA, {"address": f"a{next(self.numbers)}"}) for _ in range(MANY)]


Scenario = Callable[[Stage], Iterator[Step]]


def singles(stage: Stage) -> Iterator[Step]:
    """One task per call."""
    tube, tasks = stage.tube("singles"), TEN * stage.tens
    yield "put", TEN, _by_tens(tube.put, [DATA] * tasks)
    held: list[penstock.Task] = []
    yield "take", TEN, _by_tens(lambda _: held.append(_take_one(tube)), range(tasks))
    yield "ack", TEN, _by_tens(tube.ack, held)
    tube.put_many([DATA] * tasks)
    yield "take+ack", TEN, _by_tens(lambda _: tube.ack(_take_one(tube)), range(tasks))
    ids = [task.id for task in tube.put_many([DATA] * tasks)]
    yield "delete", TEN, _by_tens(tube.delete, ids)
    assert not len(tube)


def hundreds(stage: Stage) -> Iterator[Step]:
    """100 tasks per call."""
    tube, calls = stage.tube("hundreds"), range(TEN * stage.thousands)
    yield "put-100", 100, _each(tube.put_many, ([DATA] * 100 for _ in calls))
    held: list[list[penstock.Task]] = []
    yield "take-100", 100, _each(lambda _: held.append(tube.take_many(100)), calls)
    yield "ack-100", 100, _each(tube.ack_many, held)
    assert not len(tube)


def thousands(stage: Stage) -> Iterator[Step]:
    """1,000 tasks per call."""
    tube, calls = stage.tube("thousands"), range(stage.thousands)
    yield "put-1000", MANY, _each(tube.put_many, ([DATA] * MANY for _ in calls))
    yield "ack-1000", MANY, _each(tube.ack_many, [_take(tube) for _ in calls])
    assert not len(tube)


def addresses(stage: Stage) -> Iterator[Step]:
    """1,000 tasks per call, each with an address, so that outcomes are kept: without a result, and with one."""
    tube, calls = stage.tube("addresses"), range(stage.thousands)
    yield "put-addressed", MANY, _each(tube.put_many, [stage.addressed() for _ in calls])
    yield "ack-addressed", MANY, _each(tube.ack_many, [_take(tube) for _ in calls])
    for _ in calls:
        tube.put_many(stage.addressed())
    held = [_take(tube) for _ in calls]
    yield "ack-results", MANY, _each(lambda tasks: _settle_many(tube, "ack", tasks, RESULT), held)
    assert not len(tube)


def groups(stage: Stage) -> Iterator[Step]:
    """1,000 tasks of a group per call; the group ends with the last of them."""
    tube = stage.tube("groups")
    begun = [tube.group(f"g{next(stage.numbers)}") for _ in range(stage.thousands)]
    yield "put-group", MANY, _each(lambda group: group.put_many([DATA] * MANY), begun)
    for group in begun:
        group.start()
    yield "ack-group", MANY, _each(tube.ack_many, [_take(tube) for _ in begun])
    assert not len(tube)


def releases(stage: Stage) -> Iterator[Step]:
    """Release 1,000 taken tasks in one call, and by the end of the session that holds them."""
    tube, calls = stage.tube("releases"), range(stage.thousands)
    tube.put_many([DATA] * MANY)
    yield "release-all", MANY, _each(lambda _: tube.release_all(), (_take(tube) for _ in calls))
    yield "session-end", MANY, _each(penstock.Session.close, (_holder(stage.broker) for _ in calls))
    assert tube.stats().tasks.ready == MANY


def _holder(broker: penstock.Broker) -> penstock.Session:
    session = broker.session()
    _take(session.tube("releases"))
    return session


def dues(stage: Stage) -> Iterator[Step]:
    """Apply 1,000 lapsed leases and 1,000 ended delays, with stats()."""
    lapsing, delayed, calls = stage.tube("lapsing", ttr=SHORT), stage.tube("delayed"), range(stage.thousands)
    lapsing.put_many([DATA] * MANY)
    yield "lapse", MANY, _each(lambda _: lapsing.stats(), (_pause(_take(lapsing)) for _ in calls))
    assert lapsing.stats().tasks.ready == MANY
    delays = (_pause(delayed.put_many([DATA] * MANY, delay=SHORT)) for _ in calls)
    yield "delay", MANY, _each(lambda _: delayed.stats(), delays)
    assert delayed.stats().tasks.ready == MANY * stage.thousands


def buries(stage: Stage) -> Iterator[Step]:
    """Bury 1,000 taken tasks in one call, and kick them in another."""
    tube, calls = stage.tube("buries"), range(stage.thousands)
    for _ in calls:
        tube.put_many([DATA] * MANY)
    yield "bury", MANY, _each(lambda tasks: _settle_many(tube, "bury", tasks), [_take(tube) for _ in calls])
    assert tube.stats().tasks.buried == MANY * stage.thousands
    yield "kick", MANY, _each(lambda _: tube.kick(MANY), calls)
    assert tube.stats().tasks.ready == MANY * stage.thousands


def plain(stage: Stage) -> Iterator[Step]:
    """Put 10,000 tasks in one call; take and ack 500 at a time."""
    tube = stage.tube("plain")
    yield "put-10000", QUEUED, _each(tube.put_many, [[DATA] * QUEUED])
    yield "drain-500", DRAIN, _each(lambda _: tube.ack_many(tube.take_many(DRAIN)), range(QUEUED // DRAIN))
    assert not len(tube)


def utubes(stage: Stage) -> Iterator[Step]:
    """As plain, in 1,000 micro-queues."""
    tube = stage.tube("utubes", "utubettl")
    items = [(DATA, {"utube": number % UTUBES}) for number in range(QUEUED)]
    yield "put-10000-utubes", QUEUED, _each(tube.put_many, [items])
    yield "drain-500-utubes", DRAIN, _each(lambda _: tube.ack_many(tube.take_many(DRAIN)), range(QUEUED // DRAIN))
    assert not len(tube)


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


def _each(call: Callable[[T], object], arguments: Iterable[T]) -> list[float]:
    """The seconds of a call for each argument. Computing the next argument is not timed."""
    found = []
    gc.collect()
    for argument in arguments:
        began = time.perf_counter()
        call(argument)
        found.append(time.perf_counter() - began)
    return found


def _by_tens(call: Callable[[T], object], arguments: Sequence[T]) -> list[float]:
    """The seconds of each ten calls."""
    tens = (arguments[first : first + TEN] for first in range(0, len(arguments), TEN))
    return _each(lambda ten: [call(argument) for argument in ten], tens)


def _take_one(tube: penstock.Tube) -> penstock.Task:
    task = tube.take(0)
    assert task is not None
    return task


def _take(tube: penstock.Tube) -> list[penstock.Task]:
    tasks = tube.take_many(MANY)
    while len(tasks) < MANY:  # the tasks of a group follow its start in steps
        more = tube.take_many(MANY - len(tasks), timeout=5)  # or the clock's thread is changing them right now
        assert more
        tasks += more
    return tasks


def _pause(given: T) -> T:
    """Wait until leases and delays of SHORT have ended. No take waits, so the store does not apply them meanwhile."""
    time.sleep(2 * SHORT)
    return given


def _settle_many(tube: penstock.Tube, verb: str, tasks: list[penstock.Task], result: str | None = None) -> bool:
    """Settle tasks in one store call, as a worker does: no public verb buries many, or acks many with results.

    A commit that does it differently needs another branch here.
    """
    from penstock.core import codec

    payload = None if result is None else codec.encode(result)
    moves = [tube._move(verb, task, result=payload) for task in tasks]
    try:
        from penstock.operations.store_ops import settle
    except ModuleNotFoundError:  # a commit in which this was a method of the tube
        return None not in tube._settle_now(moves)  # type: ignore[attr-defined]
    return None not in settle(tube.runtime, tube.stored, moves)


def main() -> None:
    """Answer the parent process until it closes the pipe."""
    url, tens, thousands = sys.argv[1:]
    gc.freeze()  # imported objects stay, so the collector need not visit them before each step
    steps: Iterator[Step] = iter(())
    with penstock.connect(url) as broker:
        stage = Stage(broker, int(tens), int(thousands))
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
