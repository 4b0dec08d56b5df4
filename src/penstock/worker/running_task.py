"""One hand-out of one task in a worker, and everything that the worker holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.app.current import CurrentTask
from penstock.broker.tube import Tube
from penstock.core.task import Task
from penstock.errors import BadValue

if TYPE_CHECKING:
    from penstock.app.app import AnyHandler
    from penstock.worker.slots import Slots

# A taken task that is not started within this, or within this share of its ttr, is another worker's to run.
MAX_WAIT = 0.1
WAIT_SHARE = 0.25


class RunningTask:
    """A taken task with its handler. `deadline` is the end of its lease by the monotonic clock, None where it has none.

    It is what `penstock.current_task()` and `penstock.waiting()` speak to.
    """

    __slots__ = (
        "cancel", "current", "deadline", "ends", "finished", "handler", "lost", "session", "slots", "stopped", "stored",
        "task", "told", "traced", "ttr", "tube",
    )  # fmt: skip

    def __init__(self, task: Task, tube: Tube, session: int, now: float) -> None:
        record = task._record
        self.task = task
        self.tube = tube
        self.session = session
        self.ttr = None if record.at is None or record.taken is None else (record.at - record.taken) / 1000
        self.deadline = None if self.ttr is None else now + self.ttr
        self.ends: float | None = None  # where it is not extended beyond
        self.handler: AnyHandler | None = None
        self.stored: object = None  # its arguments
        self.traced: dict[str, object] | None = None  # its data, where a span is to be continued
        self.slots: Slots | None = None
        self.lost = False
        self.finished = False  # a verdict is on its way to the store
        self.stopped = False  # the worker stops, and ends it
        self.current: CurrentTask | None = None
        self.told: float | None = None  # the progress that the store knows
        self.cancel: Callable[[], object] | None = None

    def __repr__(self) -> str:
        unknown = "unknown" if self.task._record.callback is None else "callback"
        name = unknown if self.handler is None else self.handler.name
        return f"{name} {self.task.id} of {self.tube.name}"

    @property
    def patience(self) -> float:
        """How long it may wait in the worker before it is started."""
        return MAX_WAIT if self.ttr is None else min(MAX_WAIT, self.ttr * WAIT_SHARE)

    @property
    def progress(self) -> float | None:
        """What the handler last said."""
        return None if self.current is None else self.current.progress

    @property
    def settled(self) -> bool:
        """Whether the handler has settled it itself."""
        return self.current is not None and self.current.status is not self.task.status

    def lose(self) -> None:
        """Its lease is over: tell the handler, and end it where that can be done."""
        self.lost = True
        if self.current is not None:
            self.current.lost = True
        if self.cancel is not None:
            self.cancel()

    # for the handler

    def current_task(self) -> CurrentTask:
        """The task as the handler holds it."""
        if self.current is None:
            self.current = CurrentTask(self.task._record, self.tube, self.task.data)
            self.current.lost = self.lost
        return self.current

    def step_aside(self, *, awaited: bool = False) -> None:
        """The handler waits for other work: its slot is another's."""
        if self.handler is not None and self.handler.rules.executor == "async" and not awaited:
            raise BadValue("penstock.waiting() would block the loop here: in an async handler use `async with`")
        if self.slots is not None:
            self.slots.step_aside()

    def step_back(self) -> None:
        """Continue as soon as there is a slot."""
        if self.slots is None:
            return
        granted = threading.Event()
        self.slots.step_back(granted.set)
        granted.wait()

    async def step_back_async(self) -> None:
        """The same, awaited. Also one that is cancelled meanwhile comes back first: it will give a slot back."""
        if self.slots is None:
            return
        loop, granted = asyncio.get_running_loop(), asyncio.Event()
        self.slots.step_back(lambda: loop.call_soon_threadsafe(granted.set))
        cancelled: asyncio.CancelledError | None = None
        while not granted.is_set():
            try:
                await granted.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


class InFlight:
    """What the worker holds: taken and not settled. Those not started can be claimed once, to run or to give back."""

    def __init__(self) -> None:
        self.held: set[RunningTask] = set()
        # item -> until when it may wait. Popping is the claim, atomic without a lock.
        self.unstarted: dict[RunningTask, float] = {}

    def add(self, items: Iterable[RunningTask], now: float) -> None:
        """These were taken."""
        for item in items:
            self.held.add(item)
            self.unstarted[item] = now + item.patience

    def claim(self, item: RunningTask) -> bool:
        """Whether the caller is the one to start it, or to give it back."""
        return self.unstarted.pop(item, None) is not None

    def claim_all(self) -> list[RunningTask]:
        """Everything not started, to be given back."""
        return [item for item in list(self.unstarted) if self.claim(item)]

    def claim_overdue(self, now: float) -> list[RunningTask]:
        """What has waited too long, to be given back."""
        overdue = [item for item, until in list(self.unstarted.items()) if until <= now]
        return [item for item in overdue if self.claim(item)]
