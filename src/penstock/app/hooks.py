"""The hooks of an app: callbacks for events of its tasks, and context managers around handler runs.

Exceptions in callbacks for put, start, end, retry and bury are logged and otherwise ignored.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from penstock.core.names import shown
from penstock.core.task import Task
from penstock.errors import BadValue

if TYPE_CHECKING:
    from penstock.app.handle import Handle

log = logging.getLogger("penstock")

OnPut = Callable[["list[Handle[Any]]"], object]
OnStart = Callable[[Task], object]
OnEnd = Callable[[Task, BaseException | None, float], object]
OnError = Callable[[Task, BaseException], object]
OnProcess = Callable[[], object]
Around = Callable[[Task], Iterator[object]] | Callable[[Task], AsyncIterator[object]]
_Context = Callable[[Task], AbstractContextManager[object]]
_AsyncContext = Callable[[Task], AbstractAsyncContextManager[object]]


class Hooks:
    """The callbacks of one app."""

    def __init__(self) -> None:
        self.put: list[OnPut] = []
        self.start: list[OnStart] = []
        self.end: list[OnEnd] = []
        self.retry: list[OnError] = []
        self.bury: list[OnError] = []
        self.startup: list[OnProcess] = []
        self.shutdown: list[OnProcess] = []
        #: Context managers around every run, the outermost first; async ones are for async handlers only.
        self.around: list[_Context | _AsyncContext] = []

    def add_around(self, function: Around) -> None:
        """Wrap every run in this generator function or async generator function."""
        if inspect.isasyncgenfunction(function):
            self.around.append(asynccontextmanager(function))
        elif inspect.isgeneratorfunction(function):
            self.around.append(contextmanager(function))
        else:
            raise BadValue(f"{shown(function)} cannot be around a run: give a generator function that yields once")

    @property
    def modules(self) -> set[str]:
        """The modules that define process and around hooks: child processes import them."""
        functions: Iterable[Any] = (*self.startup, *self.shutdown, *(inspect.unwrap(each) for each in self.around))
        return {getattr(function, "__module__", "__main__") for function in functions} - {"__main__"}

    @property
    def needs_loop(self) -> bool:
        """Whether a startup or shutdown hook is a coroutine function."""
        return any(inspect.iscoroutinefunction(callback) for callback in (*self.startup, *self.shutdown))

    def start_process(self, run_async: Callable[[Any], object]) -> None:
        """Call the startup hooks; `run_async` runs a coroutine. Exceptions propagate."""
        for callback in self.startup:
            _call(callback, run_async)

    def stop_process(self, run_async: Callable[[Any], object]) -> None:
        """Call the shutdown hooks. Exceptions are logged."""
        for callback in self.shutdown:
            try:
                _call(callback, run_async)
            except Exception:
                _failed(callback)

    def was_put(self, handles: list[Handle[Any]]) -> None:
        """Call the hooks for tasks that were put."""
        _call_all(self.put, handles)

    def starts(self, task: Task) -> None:
        """Call the hooks for a task whose handler is about to be called."""
        _call_all(self.start, task)

    def ended(self, task: Task, error: BaseException | None, seconds: float) -> None:
        """Call the hooks for a task whose handler ended, with its error if any; the task is not settled yet."""
        _call_all(self.end, task, error, seconds)

    def retries(self, task: Task, error: BaseException) -> None:
        """Call the hooks for a task that is about to be released for another attempt."""
        _call_all(self.retry, task, error)

    def buries(self, task: Task, error: BaseException) -> None:
        """Call the hooks for a task that is about to be buried."""
        _call_all(self.bury, task, error)


def must_be_hook(where: str, callback: object, *, may_be_async: bool = False) -> None:
    """Raise BadValue for a hook that `where` cannot call. Only startup and shutdown hooks may be async."""
    if not callable(callback):
        raise BadValue(f"{where} got {shown(callback)}, which is not a function: put @app.{where} before a def")
    if inspect.iscoroutinefunction(callback) and not may_be_async:
        raise BadValue(f"{where} got {shown(callback)}, which is async: give a plain function")


def _call(callback: OnProcess, run_async: Callable[[Any], object]) -> None:
    answer = callback()
    if inspect.iscoroutine(answer):
        run_async(answer)


def _call_all(callbacks: Iterable[Callable[..., object]], *what: object) -> None:
    for callback in callbacks:
        try:
            callback(*what)
        except Exception:
            _failed(callback)


def _failed(callback: object) -> None:
    log.exception("app hook %r failed; continuing without it", callback)
