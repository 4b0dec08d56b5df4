"""Puts the ticks of an app's schedules, from inside every worker that wants to."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.broker.tube import Tube
from penstock.core import codec
from penstock.core.numbers import MAX_SECONDS
from penstock.core.options import refuse_option
from penstock.errors import PenstockError
from penstock.schedule import schedule_status
from penstock.schedule.plan import Plan
from penstock.schedule.ticks import LEAD_MS, MARGIN_MS, find_due

if TYPE_CHECKING:
    from penstock.app.handler import Handler

log = logging.getLogger("penstock.schedule")

Thread = Callable[[str, Callable[[], None]], threading.Thread]

# The longest sleep: a pause that has ended, or a clock that was set, is noticed within it.
LOOK_SECONDS = 30.0
RETRY_SECONDS = 1.0


class Schedule:
    """A handler and when it is due. Its key names the plan: with another plan it is another schedule."""

    def __init__(self, handler: Handler[[], Any, Any], plan: Plan, catch_up: str) -> None:
        self.handler = handler
        self.plan = plan
        self.catch_up = catch_up
        self.key = hashlib.blake2s(f"{handler.name} {plan.text}".encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        return f"<Schedule of {self.handler.name}: {self.plan.text}>"

    def put_due(self, tube: Tube, until: int | None) -> int:
        """Put the ticks that are due by the store's clock. Returns up to when; `until` is the last such time."""
        store = tube.runtime.store
        if store.paused(tube.stored):
            return until or 0  # what is missed meanwhile follows catch_up
        if self.catch_up != "none":
            until = self._read_mark(tube)
        due = find_due(self.plan, self.catch_up, until, store.now())
        if due.ticks or (self.catch_up != "none" and until is None):
            items = [self._item(tube, tick.at, tick.delay, tick.before) for tick in due.ticks]
            tube.put_many([*items, *self._mark(due.until)])
        return due.until

    def _item(self, tube: Tube, at: int, delay: int, before: int) -> object:
        moment = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
        given = {"address": self._address(moment), "on_duplicate": "ignore", "delay": delay / 1000}
        return self.handler.make_item(tube, {}, given, tick=at, before=before)

    def _address(self, of: str) -> str:
        """For people to read, and with the key for the plan; the name is cut where it would not fit."""
        return f"{self.handler.name.encode()[:100].decode(errors='ignore')} {of} #{self.key}"

    def _mark(self, until: int) -> list[object]:
        """What tells later workers which ticks were missed: a task that never comes up, with new data each time."""
        if self.catch_up == "none":
            return []
        data = {"schedule": self.handler.name, "plan": self.plan.text, "until": until}
        return [(data, {"address": self._address("mark"), "on_duplicate": "replace", "delay": MAX_SECONDS})]

    def _read_mark(self, tube: Tube) -> int | None:
        found = tube.runtime.store.outcome(tube.stored, self._address("mark"))
        record = None if found.id is None else tube.runtime.store.get(tube.stored, [found.id])[0]
        data: Any = None if record is None else codec.decode(record.payload)
        return None if data is None else int(data["until"])


class Scheduler:
    """One thread per worker. Puts ticks ahead of their time and sleeps until the next ones are near."""

    def __init__(self, schedules: Sequence[Schedule], tubes: dict[str, Tube], thread: Thread) -> None:
        self._schedules = schedules
        self._saved = not schedules
        self._tubes = tubes
        self._until: dict[Schedule, int | None] = dict.fromkeys(schedules)
        self._stop = threading.Event()
        self._thread = thread("scheduler", self._run)
        for tube in tubes.values():
            _must_fit(tube)

    @property
    def _schedule_tube(self) -> Tube:
        return self._tubes[schedule_status.SCHEDULE_TUBE]

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the put that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            self._save_schedules()
            pause = min((self._look(schedule) for schedule in self._schedules), default=LOOK_SECONDS)

    def _save_schedules(self) -> None:
        """Save the schedules once, for operators to see."""
        if not self._saved:
            try:
                pairs = [(each, self._tubes[each.handler.rules.tube]) for each in self._schedules]
                schedule_status.save(self._schedule_tube, pairs)
                self._saved = True
            except PenstockError as error:
                log.warning("could not save the schedules for operators (%s); retrying", error)

    def _look(self, schedule: Schedule) -> float:
        """Put the ticks of one schedule that are due. Returns the seconds until the next check."""
        tube = self._tubes[schedule.handler.rules.tube]
        try:
            if schedule_status.is_paused(self._schedule_tube, schedule.key):
                return RETRY_SECONDS  # what is missed meanwhile follows catch_up
            until = self._until[schedule] = schedule.put_due(tube, self._until[schedule])
            now = tube.runtime.store.now()
        except PenstockError as error:
            log.warning("could not put ticks of %r (%s); retrying", schedule, error)
            return RETRY_SECONDS
        if until <= now:
            return RETRY_SECONDS  # paused, or more was missed than one step holds
        ahead = schedule.plan.after(until) - now - (LEAD_MS - MARGIN_MS)
        return min(max(ahead / 1000, 0.05), LOOK_SECONDS)


def _must_fit(tube: Tube) -> None:
    """Raise UnsupportedOption if the tube cannot hold ticks."""
    if "delay" not in tube.stored.kind.accepts:
        refuse_option(tube.stored.kind, "delay")
