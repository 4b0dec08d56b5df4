"""What an app tells a program of its tasks: put, started, ended. For metrics and logs, without patching anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.task import Task

if TYPE_CHECKING:
    from penstock.app.handle import Handle

log = logging.getLogger("penstock")

OnPut = Callable[["list[Handle[Any]]"], object]
OnStart = Callable[[Task], object]
OnEnd = Callable[[Task, BaseException | None, float], object]


class Hooks:
    """The callbacks of one app. What one of them raises is logged, and harms nothing."""

    def __init__(self) -> None:
        self.put: list[OnPut] = []
        self.start: list[OnStart] = []
        self.end: list[OnEnd] = []

    def was_put(self, handles: list[Handle[Any]]) -> None:
        """Call the hooks for tasks that were put."""
        for callback in self.put:
            _tell(callback, handles)

    def starts(self, task: Task) -> None:
        """Call the hooks for a task whose handler is about to be called."""
        for callback in self.start:
            _tell(callback, task)

    def ended(self, task: Task, error: BaseException | None, seconds: float) -> None:
        """Call the hooks for a task whose handler ended, with its error if any; the task is not settled yet."""
        for callback in self.end:
            _tell(callback, task, error, seconds)


def _tell(callback: Callable[..., object], *what: object) -> None:
    try:
        callback(*what)
    except Exception:
        log.exception("a hook of the app failed: %r", callback)
