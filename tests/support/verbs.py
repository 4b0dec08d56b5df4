"""The kinds and verbs that parametrized tests use, and short forms of common calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock

Verb = Callable[[penstock.Tube, "penstock.Task | int"], None]

KINDS = ("fifo", "fifottl", "utube", "utubettl")
TIMED_KINDS = ("fifottl", "utubettl")
UTUBE_KINDS = ("utube", "utubettl")

# Only by the holder of the live lease.
LEASED_VERBS: dict[str, Verb] = {
    "ack": lambda tube, which: tube.ack(which),
    "fail": lambda tube, which: tube.fail(which, "broken"),
    "release": lambda tube, which: tube.release(which),
    "touch": lambda tube, which: tube.touch(which, 1),
}
# Verbs of leased kinds only, called with a task or its id.
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
# By anyone, in any state.
FREE_VERBS: dict[str, Verb] = {
    "bury": lambda tube, which: tube.bury(which),
    "delete": lambda tube, which: tube.delete(which),
}


def put_into(tube: penstock.Tube, state: str) -> None:
    """Put the first task of a tube and bring it into a state."""
    tube.put("x", delay=3 if state == "delayed" else 0)
    if state == "taken":
        take(tube)
    if state == "buried":
        tube.bury(1)


def take(tube: penstock.Tube) -> penstock.Task:
    """Take the next task; fail if there is none."""
    task = tube.take(0)
    assert task is not None, f"nothing to take in {tube.name}"
    return task


def drain(tube: penstock.Tube) -> list[object]:
    """Take and ack one task after the other. Returns their data, in order."""
    found = []
    while (task := tube.take(0)) is not None:
        found.append(task.data)
        task.ack()
    return found


def take_all(tube: penstock.Tube) -> list[object]:
    """Take everything that is ready, without acks. Returns the data, in order."""
    return [task.data for task in tube.take_many(1000)]
