"""What the parts of a worker share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.app.ends import Bury, Retry
from penstock.app.hooks import Hooks
from penstock.worker import settlement as verdict
from penstock.worker.running_task import Hand, Item
from penstock.worker.settings import Settings
from penstock.worker.settler import Settler
from penstock.worker.slots import Slots
from penstock.worker.stats import Pace, Tally

log = logging.getLogger("penstock.worker")


class Executor(Protocol):
    """Where handlers run. Each item it is given ends as a verdict with the settler, unless someone else claims it."""

    def start(self, items: Sequence[Item]) -> None:
        """Run these when there are slots for them; from one thread only."""

    def room(self) -> int | None:
        """How many more it could begin at once; None where slots alone decide."""

    def stop(self) -> None:
        """End what still runs, where that can be done."""


class Work:
    """What is held, what runs, what is finished, and how fast it goes."""

    def __init__(self, settings: Settings, hooks: Hooks | None = None) -> None:
        self.hooks = hooks or Hooks()
        self.hand = Hand()
        self.tally = Tally()
        self.slots = Slots(settings.concurrency, settings.limits)
        self.settler = Settler(self.hand, self.tally, self.thread)
        self.pace = Pace()
        #: Called when a part of the worker has died of a mistake in it.
        self.on_crash: Callable[[], object] = lambda: None
        #: When no more than so many wait to be started, `on_low` is called, once.
        self.low = -1
        self.on_low: Callable[[], None] = lambda: None

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """A thread of the worker itself, guarded."""
        return threading.Thread(target=self.guarded(name, run), name=f"penstock-{name}", daemon=True)

    def guarded(self, name: str, run: Callable[[], None]) -> Callable[[], None]:
        """A part of the worker itself. Without it the others would go on in vain, so its death is told."""

        def guarded() -> None:
            try:
                run()
            except BaseException:
                log.critical("the worker's %s has died and it cannot go on", name, exc_info=True)
                self.on_crash()

        return guarded

    def claim(self, item: Item) -> bool:
        """Whether the caller, who has a slot, is to run it now."""
        if not self.hand.claim(item):
            return False  # it waited too long, and was given back
        if len(self.hand.unstarted) <= self.low:
            self.low = -1
            self.on_low()
        if self.slots.limited and not self.slots.may_start(item.task.pri):
            self.settler.add(item, verdict.unstarted(item))
            return False
        if self.hooks.start:
            self.hooks.starts(item.task)
        return True

    def finish(self, item: Item, result: object, began: float) -> None:
        """Its handler returned."""
        self._ended(item, None, time.perf_counter() - began)
        if item.lost:
            return self.settler.forget(item)
        return self.settler.add(item, verdict.done(item, result))

    def fail(self, item: Item, error: BaseException, began: float) -> None:
        """Its handler raised, or could not be called."""
        self._ended(item, error, time.perf_counter() - began)
        if item.lost:
            return self.settler.forget(item)
        ended = verdict.stopped(item) if item.stopped else verdict.failed(item, error)
        if not isinstance(error, (Retry, Bury)) and not item.stopped:
            log.warning(
                "%r failed in attempt %d: %s", item, item.task.attempts, ended.move.reason,
                exc_info=_shown(error), extra={"item": item},
            )  # fmt: skip
        return self.settler.add(item, ended)

    def _ended(self, item: Item, error: BaseException | None, seconds: float) -> None:
        self.pace.note(seconds)
        if self.hooks.end:
            self.hooks.ended(item.task, error, seconds)


def _shown(error: BaseException) -> BaseException | None:
    """The error with a traceback that begins in the handler, not in here; None where that leaves nothing."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("penstock."):
        at = at.tb_next
    return None if at is None else error.with_traceback(at)
