"""What a handler can use while it runs: its task, `waiting`, and the signals that it can raise."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from penstock.core import names, values
from penstock.core.ending import encode_code
from penstock.core.task import Record, Task, TaskTube
from penstock.core.values import Seconds, span_ms
from penstock.errors import BadValue, Cancelled, LeaseLost, NotFound

if TYPE_CHECKING:
    from penstock.app.transaction import TaskTransaction


class Retry(Exception):
    """Raise it to retry the task after `delay` seconds (None: the handler's back-off).

    The attempt counts.
    """

    def __init__(self, delay: Seconds | None = None, reason: str | None = None) -> None:
        self.delay = None if delay is None else span_ms("delay", delay) / 1000
        self.reason = names.text("reason", reason)
        super().__init__(delay, reason)

    def __str__(self) -> str:
        return self.reason or ("after the back-off" if self.delay is None else f"after {self.delay:g} s")


class Bury(Exception):
    """Raise it to bury the task with a reason."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = names.text("reason", reason)
        super().__init__(reason)


def reason_of(signal: Retry | Bury) -> str | None:
    """The reason it was given, else the exception from which, or while handling which, it was raised."""
    led = signal.__cause__ or (None if signal.__suppress_context__ else signal.__context__)
    return signal.reason or (None if led is None else names.text("reason", names.failure(led)))


class Snooze(Exception):
    """Raise it to run the task again after `delay` seconds. The attempt does not count."""

    def __init__(self, delay: Seconds) -> None:
        self.delay = span_ms("delay", delay) / 1000
        super().__init__(delay)


class Fail(Exception):
    """Raise it to end the task with the outcome `failed`, without a retry."""

    def __init__(self, error: str, code: str | int | None = None) -> None:
        text = names.text("error", error)
        if text is None:
            raise BadValue("error is None: give a str that says what failed")
        encode_code(code)
        self.error = text
        self.code = code
        super().__init__(error, code)

    def __str__(self) -> str:
        return self.error if self.code is None else f"{self.error} (code {self.code})"


class Failures(Exception):
    """Raise it in a batch handler to fail some tasks, by their index in the list; the others are done."""

    def __init__(self, failures: Mapping[int, BaseException]) -> None:
        given: object = failures
        if not isinstance(given, Mapping):
            raise BadValue(f"failures {names.shown(failures)}: give a dict of indexes and exceptions")
        for index, error in given.items():
            if type(index) is not int or not isinstance(error, BaseException):
                raise BadValue(f"failures has {names.shown(index)}: {names.shown(error)}; give indexes and exceptions")
        self.failures = dict(failures)
        super().__init__(self.failures)


# Signals that a handler raises to settle its task; none of them is an error.
SIGNALS = (Retry, Snooze, Bury, Fail)


class CurrentTask(Task):
    """The task that a handler works on. Setting `progress` (0 to 1) stores it for display.

    `lost` becomes True when its lease is over: another worker may have it, and this one's result will be dropped.
    """

    __slots__ = ("_progress", "cause", "eager", "lost", "unsure")

    def __init__(self, record: Record, tube: TaskTube, data: object) -> None:
        super().__init__(record, tube, data, leased=True)
        self.lost = False
        #: Internal: True if the ack is part of a transaction that the caller may still roll back.
        self.unsure = False
        #: Internal: True in penstock.testing.eager, where the ack is not part of the caller's transaction.
        self.eager = False
        #: How the lease was lost, for `check`.
        self.cause = ""

    def check(self) -> None:
        """Raise LeaseLost if the lease is over, or its subclass Cancelled if the task will not run again."""
        if not self.lost:
            return
        if self.cause in ("cancelled", "deleted", "buried"):
            raise Cancelled(f"task {self.id} of tube {self.tube} was {self.cause}: stop working on it", self.cause)
        what = "has lapsed" if self.cause == "lapsed" else "was released"
        raise LeaseLost(f"the lease of task {self.id} of tube {self.tube} {what}: stop working on it", self.cause)

    def transaction(self, connection: object, result: object = None) -> TaskTransaction:
        """A `with` block whose SQL, bound puts and the ack of this task are committed together.

        Use `async with` in an event loop. The block begins and commits a transaction; if one is already open, the
        caller commits it. An exception rolls back, and the task is retried. Raises NotTaken if the lease was lost.
        """
        from penstock.app.transaction import TaskTransaction  # imports this module, by way of arguments

        return TaskTransaction(self, connection, result)

    @property
    def progress(self) -> float | None:
        """The progress from 0 to 1 that the handler last set; None if it has set none."""
        return self._progress

    @progress.setter
    def progress(self, share: float | None) -> None:
        self._progress = None if share is None else values.share("progress", share)


class Run(Protocol):
    """One run of a handler, as `current_task` and `waiting` see it; implemented by the worker."""

    def current_task(self) -> CurrentTask: ...
    def current_tasks(self) -> list[CurrentTask]: ...
    def give_up_slot(self, *, awaited: bool) -> None: ...
    def regain_slot(self) -> None: ...
    async def regain_slot_async(self) -> None: ...


_run: ContextVar[Run | None] = ContextVar("penstock_run", default=None)
set_run = _run.set
get_run = _run.get


def current_task() -> CurrentTask:
    """The task of the calling handler. Raises NotFound outside a handler, and in a batch handler."""
    run = _run.get()
    if run is None:
        raise NotFound("there is no current task: call current_task() only in functions that a worker runs")
    return run.current_task()


def find_task() -> CurrentTask | None:
    """The task of the calling handler, or the first of its batch; None outside a handler."""
    run = _run.get()
    return None if run is None else run.current_tasks()[0]


def current_tasks() -> list[CurrentTask]:
    """The tasks of the calling handler: those of its batch, in order, or the single one."""
    run = _run.get()
    if run is None:
        raise NotFound("there is no current task: call current_tasks() only in functions that a worker runs")
    return run.current_tasks()


def waiting() -> Waiting:
    """Free the slot of a handler while it waits for other tasks; use `async with` in an async handler.

    The handler gets a slot back when the block ends, before new tasks start. Outside a worker it does nothing.
    """
    return Waiting()


class Waiting:
    """A block in which the calling handler needs no slot."""

    def __init__(self) -> None:
        self._run = _run.get()

    def __enter__(self) -> None:
        if self._run is not None:
            self._run.give_up_slot(awaited=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._run is not None:
            self._run.regain_slot()

    async def __aenter__(self) -> None:
        if self._run is not None:
            self._run.give_up_slot(awaited=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._run is not None:
            await self._run.regain_slot_async()
