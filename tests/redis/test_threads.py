"""Several threads and processes on one store."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest

import penstock
from tests.support.threads import begin, until


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube"])
def test_threads_take_each_task_once(broker: penstock.Broker, kind: str) -> None:
    tube, session, found, lock = broker.tube("t", kind=kind), broker.session(), list[object](), threading.Lock()
    own = session.tube("t")
    options = {"utube": "u"} if kind == "utube" else {}

    def produce(start: int) -> None:
        for i in range(start, start + 200):
            tube.put(i, **options)  # type: ignore[arg-type]

    def consume() -> None:
        with suppress(penstock.NotFound):  # the session was closed between two takes
            while (task := own.take()) is not None:
                with lock:
                    found.append(task.data)
                task.ack()

    producing = [begin(lambda start=start: produce(start)) for start in (0, 200)]  # type: ignore[misc]
    consuming = [begin(consume) for _ in range(3)]
    for future in producing:
        future.result(30)
    until(lambda: tube.stats().tasks.total == 0)
    session.close()  # which ends the takes
    for future in consuming:
        future.result(30)
    assert sorted(found) == list(range(400))  # type: ignore[type-var]
    assert broker.check() == []


def test_a_forked_child_has_its_own_connections(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("before")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            task = tube.take(0)
            status = 0 if task is not None and task.data == "before" else 2
            tube.put("child")
        finally:
            os._exit(status)
    tube.put("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {task.data for task in tube.tasks()} == {"before", "child", "parent"}
    assert tube.put("after").id == 4
