"""Assertions and views that tests share: counters, task fields, refused values, waiters, findings of a check."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import penstock
from tests.support.threads import begin

_TASKS = ("ready", "taken", "delayed", "buried", "done", "total")
_CALLS = ("put", "take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")
_FACTS = (
    "id", "status", "data", "tube", "pri", "utube", "attempts", "lease", "created", "taken", "due", "expires", "reason",
)  # fmt: skip


def tasks(tube: penstock.Tube) -> dict[str, int]:
    """The task counters that are not 0."""
    counters = tube.stats().tasks
    return {name: getattr(counters, name) for name in _TASKS if getattr(counters, name)}


def calls(tube: penstock.Tube) -> dict[str, int]:
    """The call counters that are not 0."""
    counters = tube.stats().calls
    return {name: getattr(counters, name) for name in _CALLS if getattr(counters, name)}


def facts(task: penstock.Task) -> dict[str, object]:
    """All public fields of a task."""
    return {name: getattr(task, name) for name in _FACTS}


def everything(tube: penstock.Tube) -> object:
    """Everything stored and counted, to show that a refused call changed nothing."""
    return tasks(tube), calls(tube), [facts(task) for task in tube.tasks()]


def refused(values: Iterable[object], call: Callable[[Any], object], word: str = "") -> None:
    """Assert that each of these values makes the call raise a BadValue that mentions the word."""
    for place, value in enumerate(values):
        message: str | None = None
        try:
            call(value)
        except penstock.BadValue as error:
            message = str(error)
        assert message is not None, f"value {place} of type {type(value).__name__} is not refused"
        assert word in message, f"value {place} of type {type(value).__name__}"


def waiters(broker: penstock.Broker, tube: str) -> int:
    """How many sessions are blocked in a take of that tube."""
    return sum(tube in session.waits for session in broker.sessions())


def all_asleep(broker: penstock.Broker) -> bool:
    """Whether no blocked call of this process is trying again because it was woken."""
    return not any(
        waiter.woken for waiting in list(broker.runtime.wait_queue.topics.values()) for waiter in list(waiting)
    )


def findings_in_use(broker: penstock.Broker) -> list[penstock.Finding]:
    """The findings of repeated checks while other processes put into the tube."""
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
