"""Runs the queued tasks of an application in the calling thread, so that a test needs no worker."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.app.app import App
from penstock.app.current import SIGNALS, Fail, Failures, set_run
from penstock.app.running import call_here, log_tasks
from penstock.broker.session import SessionHandle
from penstock.broker.tube import Tube
from penstock.core import names
from penstock.core.task import Task
from penstock.operations.store_ops import settle
from penstock.worker import settlement
from penstock.worker.batches import Batch
from penstock.worker.running_task import RunningTask, read_call


def run_queued(app: App, *, raises: bool = True) -> int:
    """Run every ready task, and those that they put, until nothing is ready. Returns how many were run.

    Each task is settled as a worker would: acked, released with back-off, or buried. The first exception of a handler
    is raised after its task is settled, unless raises=False.
    """
    session_handle = SessionHandle(app.broker.runtime, implicit=True)
    count = 0
    log_tasks()
    try:
        for tube, task in _ready(app, session_handle):
            count += 1
            error = _run(app, RunningTask(task, tube, session_handle.number, 0))
            if error is not None and raises and not isinstance(error, SIGNALS):
                raise error
    finally:
        set_run(None)
        session_handle.close()
    return count


def _ready(app: App, session_handle: SessionHandle) -> Iterator[tuple[Tube, Task]]:
    found = True
    while found:
        found = False
        for name in dict.fromkeys(handler.rules.tube for handler in app.handlers.values()):
            tube = Tube(app.broker.runtime, session_handle, app.connection.tube(name).stored)
            while task := tube.take(0):
                found = True
                yield tube, task


def run_once(app: App, item: RunningTask) -> Exception | None:
    """Run a task of a handler of this app, without retries. Returns the handler's error, or None."""
    return _run(app, item, once=True)


def _run(app: App, item: RunningTask, *, once: bool = False) -> Exception | None:
    data = read_call(item.task) or {}
    name = data.get("task")
    handler = app.handlers.get(name) if isinstance(name, str) else None
    if handler is None:
        settle(item.tube.runtime, item.tube.stored, [settlement.unknown(item).move])
        return None
    item.use(handler, None, data)
    batch = None
    if handler.rules.batch is not None:
        batch = Batch([item], alone=True)
        batch.start([item])
    set_run(batch or item)
    app.hooks.starts(item.task)
    began, error = time.perf_counter(), None
    try:
        result = call_here(handler, batch or item, item.stored if batch is None else batch.stored, item.traced)
        ended = settlement.done(item, result if batch is None else batch.results(result)[0])
    except Exception as raised:
        item.unsettle()
        inner = raised.failures.get(0) if batch is not None and isinstance(raised, Failures) else None
        error = inner if isinstance(inner, Exception) else raised
        ended = settlement.failed(item, Fail(names.failure(error)) if once and not isinstance(error, Fail) else error)
    app.hooks.ended(item.task, error, time.perf_counter() - began)
    settlement.call_hooks(app.hooks, item, ended, error)
    if item.unsure:
        ended = settlement.uncommitted(item)
    if item.unsure or not item.settled:
        settle(item.tube.runtime, item.tube.stored, [ended.move])
    return error
