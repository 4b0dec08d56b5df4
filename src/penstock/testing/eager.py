"""Runs every put of an application at once in the caller, so that a test needs neither a worker nor a store."""

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
    """In this block a put runs its function before it returns, and raises what that raises. Nothing is stored.

    Delays and other put options are ignored, nothing is retried, chains and groups run through. Handles have the
    results, also after the block.
    """
    if app.connection.eager is not None:
        yield
        return
    log_tasks()
    url = f"memory://eager-{uuid4().hex}"
    kept = connect(url)  # never closed: it has the results as long as a handle needs them
    with connect(url) as runner:
        opened.pop(url)
        with app.connection.replaced(kept, lambda: _run_ready(app, runner)):
            yield


def _run_ready(app: App, runner: Broker) -> None:
    """Run what is ready, and what that puts; after an error, forget the rest and raise it."""
    outer = get_run()
    try:
        while _run_each(app, runner):
            pass
    except BaseException:
        for info in runner.tubes():
            tube = runner.tube(info.name)
            for task in tube.tasks("r"):
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
                raise NotFound(f"no handler named {shown(name)} is known to this app: import the module that has it")
            error = run_once(app, RunningTask(task, tube, tube.session_handle.number, 0))
            if error is not None:
                raise error
    return found
