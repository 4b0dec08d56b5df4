"""The app that workers run for a backend: each of Django's tasks is a handler, called as Django calls it."""

from __future__ import annotations

import inspect
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from penstock.app.app import App
from penstock.app.arguments import UnknownArguments
from penstock.app.current import Bury, Fail, Retry, Snooze, current_task, reason_of
from penstock.app.handler import NamedHandler
from penstock.core.attempts import Attempt
from penstock.core.task import Task
from penstock.django import task_results
from penstock.django.task_results import Facts, Status, base, signals
from penstock.worker.settlement import HandlerFailed


class TaskApp(App):
    """The app of a backend. Its tubes are the backend's queues."""

    def __init__(self, backend: type, alias: str, url: str | None, tubes: Mapping[str, Any]) -> None:
        super().__init__(url)
        self.connection.tube_options = tubes
        self._alias = alias
        self._backend = backend  # sends the signals
        self.on_bury(self._buried)

    def load(self) -> None:
        """Make a handler for every Django task that is known in this process."""
        task_results.load_tasks()
        for path, task in list(task_results.known.items()):
            if path not in self.handlers:
                self.handlers[path] = _TaskHandler(self, task)

    def begin(self) -> Any:
        """Send the signal that a run begins. Returns its TaskResult."""
        close_old_connections()
        result = self._result(current_task(), Status.RUNNING)
        signals.task_started.send(self._backend, task_result=result)
        return result

    def end(self, result: Any, value: object) -> dict[str, object]:
        """Send the signal that a run succeeded. Returns the value to store as the task's result."""
        task, now = current_task(), time.time()
        object.__setattr__(result, "_return_value", value)
        self._finish(result, Status.SUCCESSFUL, now)
        limit = self.connection.tube(task.tube).stored.max_payload
        return task_results.kept(_facts(task, now), value, limit)

    def failed(self, error: BaseException) -> Exception:
        """The exception to raise to the worker: it buries the task, unless its tube has a `max_attempts`."""
        shown = "".join(traceback.format_exception(error))
        text = error.error if isinstance(error, Fail) else str(error)
        message = f"{type(error).__module__}.{type(error).__qualname__}: {text}"
        retried = self.connection.tube(current_task().tube).stored.max_attempts is not None
        return _Raised(message, shown) if retried and not isinstance(error, Fail) else _RaisedForGood(message, shown)

    def _buried(self, task: Task, error: BaseException) -> None:
        """Send the signal that a task has failed for good: in its last attempt, or because its worker died in that."""
        text = reason_of(error) or type(error).__name__ if isinstance(error, Retry | Bury) else str(error)
        now, shown = time.time(), getattr(error, "remote_traceback", "")
        result = self._result(task, Status.FAILED)
        result.errors.append(task_results.error_of(Attempt(task.attempts, now, socket.gethostname(), text, shown)))
        try:
            raise error.__cause__ or error
        except BaseException:  # receivers, Django's own log among them, ask sys.exc_info() what failed
            self._finish(result, Status.FAILED, now)

    def _result(self, task: Task, status: Any) -> Any:
        return task_results.make(self._alias, f"{task.tube}:{task.address or task.id}", task.tube, status, _facts(task))

    def _finish(self, result: Any, status: Any, now: float) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", task_results.moment(now))
        signals.task_finished.send(self._backend, task_result=result)


def _facts(task: Task, ended: float | None = None) -> Facts:
    workers = [*task_results.workers(task.attempts - 1, []), socket.gethostname()]
    return Facts(task_results.plain_call(task.data), task.pri, task.created, task.taken, ended, workers)


class _Raised(HandlerFailed):
    """An exception of a task that is retried."""

    def __init__(self, message: str, shown: str) -> None:
        super().__init__(message)
        self.remote_traceback = shown


class _RaisedForGood(Bury):
    """An exception of a task that is buried; Django shows it as failed."""

    def __init__(self, message: str, shown: str) -> None:
        super().__init__(message)
        self.remote_traceback = shown


class _TaskHandler(NamedHandler):
    """The handler of one Django task."""

    def __init__(self, app: TaskApp, task: Any) -> None:
        queues = app.connection.tube_options  # a task of another backend may have a queue that is not among these
        queue = task.queue_name if task.queue_name in queues or not queues else next(iter(queues))
        super().__init__(app.connection, task.module_path, queue, app.hooks)
        is_async = inspect.iscoroutinefunction(task.func)
        self.rules = self.rules._replace(executor="async" if is_async else "thread")
        self.function = _run_async(app, task) if is_async else _run(app, task)
        self.arguments = _AnyArguments(self.name)


class _AnyArguments(UnknownArguments):
    """Arguments that are passed on unchecked: the function itself refuses those that do not fit."""

    def call(self, function: Callable[..., Any], stored: object) -> Any:
        """Call the function with the stored arguments."""
        args, kwargs = task_results.split(stored)
        return function(*args, **kwargs)


def _run(app: TaskApp, task: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> object:
        result = app.begin()
        try:
            value = task_results.normalize_json(task.func(*_context(task, result), *args, **kwargs))
        except (Retry, Snooze, Bury):
            raise
        except (Exception, SystemExit) as error:
            raise app.failed(error) from error
        finally:
            close_old_connections()
        return app.end(result, value)

    return run


def _run_async(app: TaskApp, task: Any) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> object:
        result = await sync_to_async(app.begin)()
        try:
            value = task_results.normalize_json(await task.func(*_context(task, result), *args, **kwargs))
        except (Retry, Snooze, Bury):
            raise
        except (Exception, SystemExit) as error:
            raise app.failed(error) from error
        finally:
            await sync_to_async(close_old_connections)()
        return await sync_to_async(app.end)(result, value)

    return run


def _context(task: Any, result: Any) -> tuple[Any, ...]:
    return (base.TaskContext(task_result=result),) if task.takes_context else ()
