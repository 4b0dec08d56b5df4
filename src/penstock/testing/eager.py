"""Runs every put of an application immediately, in the caller, so that a test needs neither a worker nor a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from penstock.app.app import App
from penstock.app.current import get_run, set_run
from penstock.app.running import log_tasks
from penstock.broker.broker import Broker, connect
from penstock.core.names import shown
from penstock.errors import NotFound
from penstock.store.sqlite.memory import opened
from penstock.testing.queued import run_once
from penstock.worker.running_task import RunningTask, read_call


@contextmanager
def eager(app: App) -> Iterator[None]:
    """Inside this block, a put runs its function before it returns, and raises its exceptions. Nothing is stored.

    Delays and other put options are ignored, nothing is retried, chains and groups run through. Handles have the
    results, also after the block.
    """
    if app.connection.eager is not None:
        yield
        return
    log_tasks()
    url = f"memory://eager-{uuid4().hex}"
    kept = connect(url)  # never closed: handles read their results from it
    with connect(url) as runner:
        opened.pop(url)
        with app.connection.replaced(kept, lambda: _run_ready(app, runner)):
            yield


def _run_ready(app: App, runner: Broker) -> None:
    """Run the ready tasks and those that they put; after an error, drop the rest and raise it."""
    outer = get_run()
    try:
        while _run_each(app, runner):
            pass
    except BaseException:
        for info in runner.tubes():
            tube = runner.tube(info.name)
            while ready := tube.tasks("r"):
                for task in ready:
                    tube.cancel(task.id)
        raise
    finally:
        set_run(outer)


def _run_each(app: App, runner: Broker) -> bool:
    found = False
    for info in runner.tubes():
        tube = runner.tube(info.name)
        while task := tube.take(0):
            found = True
            name = (read_call(task) or {}).get("task")
            if name not in app.handlers:
                task.fail("unknown")
                raise NotFound(f"this app has no handler named {shown(name)}: import the module that defines it")
            item = RunningTask(task, tube, tube.session_handle.number, 0)
            item.current_task().eager = True
            error = run_once(app, item)
            if error is not None:
                raise error
    return found
