"""What many behaviour tests say, said once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import penstock

T = TypeVar("T")
Verb = Callable[[penstock.Tube, "penstock.Task | int"], None]

KINDS = ("fifo", "fifottl", "utube", "utubettl")
TIMED_KINDS = ("fifottl", "utubettl")
UTUBE_KINDS = ("utube", "utubettl")

# Only for the holder of the live lease.
LEASED_VERBS: dict[str, Verb] = {
    "ack": lambda tube, which: tube.ack(which),
    "fail": lambda tube, which: tube.fail(which, "broken"),
    "release": lambda tube, which: tube.release(which),
    "touch": lambda tube, which: tube.touch(which, 1),
}
# That only leased kinds have, called with a task or its id.
LEASED_KINDS_VERBS: dict[str, Callable[[penstock.Tube, Any], object]] = {
    "fail": lambda tube, task: tube.fail(task, "broken"),
    "release": lambda tube, task: tube.release(task),
    "release with delay": lambda tube, task: tube.release(task, 5),
    "touch": lambda tube, task: tube.touch(task, 1),
    "bury": lambda tube, task: tube.bury(task),
    "kick": lambda tube, task: tube.kick(),
    "release_all": lambda tube, task: tube.release_all(),
    "group": lambda tube, task: tube.group("g"),
    "wait": lambda tube, task: tube.wait("a", 0),
    "max_pri": lambda tube, task: tube.take(0, max_pri=0),
}
# For anyone, in any state.
FREE_VERBS: dict[str, Verb] = {
    "bury": lambda tube, which: tube.bury(which),
    "delete": lambda tube, which: tube.delete(which),
}

_TASKS = ("ready", "taken", "delayed", "buried", "done", "total")
_CALLS = ("put", "take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")
_FACTS = (
    "id", "status", "data", "tube", "pri", "utube", "attempts", "lease", "created", "taken", "due", "expires", "reason",
)  # fmt: skip


def put_into(tube: penstock.Tube, state: str) -> None:
    """The first task of a tube, brought into a state."""
    tube.put("x", delay=3 if state == "delayed" else 0)
    if state == "taken":
        take(tube)
    if state == "buried":
        tube.bury(1)


def take(tube: penstock.Tube) -> penstock.Task:
    """The next task, which must be there."""
    task = tube.take(0)
    assert task is not None, f"nothing to take in {tube.name}"
    return task


def drain(tube: penstock.Tube) -> list[object]:
    """The data of what can be taken, in order; each task is acked before the next is taken."""
    found = []
    while (task := tube.take(0)) is not None:
        found.append(task.data)
        task.ack()
    return found


def take_all(tube: penstock.Tube) -> list[object]:
    """The data of what can be taken at once, in order; nothing is acked."""
    return [task.data for task in tube.take_many(1000)]


def tasks(tube: penstock.Tube) -> dict[str, int]:
    """The task counters that are not 0."""
    counters = tube.stats().tasks
    return {name: getattr(counters, name) for name in _TASKS if getattr(counters, name)}


def calls(tube: penstock.Tube) -> dict[str, int]:
    """The call counters that are not 0."""
    counters = tube.stats().calls
    return {name: getattr(counters, name) for name in _CALLS if getattr(counters, name)}


def facts(task: penstock.Task) -> dict[str, object]:
    """All that a task says of itself."""
    return {name: getattr(task, name) for name in _FACTS}


def everything(tube: penstock.Tube) -> object:
    """All that is stored and counted, to show that a refused call changed nothing."""
    return tasks(tube), calls(tube), [facts(task) for task in tube.tasks()]


def refused(values: Iterable[object], call: Callable[[Any], object], word: str = "") -> None:
    """Each of these values makes the call raise a BadValue that names the word."""
    for place, value in enumerate(values):
        said: str | None = None
        try:
            call(value)
        except penstock.BadValue as error:
            said = str(error)
        assert said is not None, f"value {place} of type {type(value).__name__} is not refused"
        assert word in said, f"value {place} of type {type(value).__name__}"


def begin(call: Callable[[], T]) -> Future[T]:
    """Run the call in a thread of its own; a thread that hangs does not hang the test run."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Come back when the condition holds; it must hold within so many seconds."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        pause.wait(0.005)


def waiters(broker: penstock.Broker, tube: str) -> int:
    """How many sessions are blocked in a take of that tube."""
    return sum(tube in session.waits for session in broker.sessions())


def findings_in_use(broker: penstock.Broker) -> list[penstock.Finding]:
    """What checks find in a tube that others put into."""
    tube, over = broker.tube("t", kind="fifo"), threading.Event()

    def work() -> None:
        while not over.is_set():
            tube.put_many(range(20))

    workers = [begin(work) for _ in range(3)]
    try:
        return [finding for _ in range(10) for finding in broker.check()]
    finally:
        over.set()
        for worker in workers:
            worker.result(30)
