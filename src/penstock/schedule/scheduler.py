"""Puts the ticks of schedules, in every worker: those of its app, and those stored by `app.schedules.set`."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.broker.tube import Tube
from penstock.core import codec, names
from penstock.core.options import refuse_option
from penstock.core.results import Overdue
from penstock.core.task import Task, record_of
from penstock.core.values import MAX_SECONDS, plain_seconds
from penstock.errors import NoSuchTube, PenstockError
from penstock.schedule import schedule_status
from penstock.schedule.plan import Plan, make_plan
from penstock.schedule.schedule_status import SCHEDULE_TUBE, Run, ScheduleRecord
from penstock.schedule.ticks import LEAD_MS, MARGIN_MS, SET_BACK_MS, SHORT_LEAD_MS, Due, Tick, find_due, past_ticks

if TYPE_CHECKING:
    from penstock.app.handler import Handler
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.schedule")

Thread = Callable[[str, Callable[[], None]], threading.Thread]

# The longest sleep. Changed schedules and clock changes are noticed at the next check of the store's clock.
MAX_SLEEP_SECONDS = 30.0
RETRY_SECONDS = 1.0
# Stored schedules are read again after this time, in case a program died before it announced a change.
READ_SECONDS = 60.0
# A step of the store's clock above this means that the clock was set; smaller ones are drift.
_JUMP_MS = 1_000
# The address of the task that records up to when ticks were put. It never becomes ready.
_PUT_UNTIL = "put until"
# Characters of an error that are kept with the last run.
_MOST_ERROR = 200


class Declared:
    """A handler and its plan, as declared by a decorator. A changed plan is a new schedule with a new key."""

    def __init__(self, handler: Handler[[], Any, Any], plan: Plan, catch_up: str, overlap: bool = True) -> None:
        self.handler = handler
        self.plan = plan
        self.catch_up = catch_up
        self.overlap = overlap
        self.key = hashlib.blake2s(f"{handler.name} {plan.text}".encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        return f"<Schedule of {self.handler.name}: {self.plan.text}>"

    def record(self, tube: Tube) -> ScheduleRecord:
        """The record to save for this schedule; `tube` is the tube of its ticks."""
        data, options = self.handler.make_item(tube, {}, {})
        return make_record(self.key, self.handler.name, self.plan, tube, self.catch_up, self.overlap, data, options)


def make_record(
    key: str, schedule: str, plan: Plan, tube: Tube, catch_up: str, overlap: bool, data: object, options: Any,
    name: str = "",
) -> ScheduleRecord:  # fmt: skip
    """The record of a schedule to save."""
    _must_fit(tube)
    kept = {option: plain_seconds(value) for option, value in options.items() if value is not None}
    kept.pop("address", None)
    stored: Any = codec.decode(codec.encode(data))
    return ScheduleRecord(key, schedule, plan.text, plan.when, tube.name, catch_up, stored, kept, overlap, name)


class Planned:
    """A schedule that this worker runs: the time up to which its ticks are put, and when the next is due."""

    def __init__(self, record: ScheduleRecord) -> None:
        self.record = record
        self.plan = make_plan(record.when)
        self.until: int | None = None
        self._next = 0
        self._lead = LEAD_MS

    @property
    def put_at(self) -> int:
        """When to put the next tick, in milliseconds of the store's clock."""
        return self._next - self._lead + (MARGIN_MS if self.record.overlap else 0)

    def is_due(self, now: int) -> bool:
        """Whether ticks are due, or the clock was set back so far that times repeat."""
        return self.put_at <= now or (self.until or 0) > now + LEAD_MS + SET_BACK_MS

    def find_due(self, until: int | None, now: int) -> Due:
        """The ticks to put."""
        if not self.record.overlap and (self.until is None or self._next < now):
            self._set_next(self.plan.after(now))
        return find_due(self.plan, self.record.catch_up, until, now, self._lead)

    def put(self, due: Due) -> None:
        """Record that these ticks were put."""
        self.until = due.until
        self._set_next(due.next)

    def _set_next(self, moment: int) -> None:
        self._next = moment
        if not self.record.overlap:  # not put before the last tick can have ended
            self._lead = max(1, min(SHORT_LEAD_MS, (moment - self.plan.until(moment - 1)) // 2))

    def item(self, tick: Tick) -> tuple[dict[str, Any], dict[str, Any]]:
        """The item of put_many for a tick."""
        options = {"address": self.address(tick.at), "on_duplicate": "ignore", "delay": tick.delay / 1000}
        return {**self.record.data, "tick": tick.at, "before": tick.before}, {**self.record.options, **options}

    def address(self, at: int) -> str:
        """The address of a tick. With overlap=False all ticks share one, so that only one can be in the tube."""
        return self.record.address(_shown(at) if self.record.overlap else "tick")

    def has(self, data: dict[str, Any]) -> bool:
        """Whether a task is a tick of this schedule."""
        at = int(data["tick"])
        return self.plan.until(at) == at and all(data.get(key) == value for key, value in self.record.data.items())

    @property
    def marked(self) -> bool:
        """Whether the schedule stores a mark, by which later workers find missed ticks."""
        return self.record.catch_up != "none"

    def mark(self, until: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The task that stores the mark. It never becomes ready."""
        data = {"schedule": self.record.schedule, "plan": self.plan.text, "until": until}
        return data, {"address": self.record.address("mark"), "on_duplicate": "replace", "delay": MAX_SECONDS}


class Scheduler:
    """One thread per worker. Puts ticks ahead of their time and sleeps until the next ones are near."""

    def __init__(self, broker: Broker, declared: Sequence[Declared], thread: Thread) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._tubes: dict[str, Tube] = {}
        self._declared = [Planned(each.record(self._tube(each.handler.rules.tube))) for each in declared]
        self._stored: dict[str, Planned] = {}
        self._saved = not declared
        self._read_at = 0.0
        self._altered: str | None = None
        self._put_until: int | None = None  # as it was last stored
        self._clock: tuple[int, float] | None = None
        self._runs: dict[str, Run] = {}
        self._stopping = False
        self._wake = threading.Event()
        self._thread = thread("scheduler", self._run)
        self._unwatch: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the thread."""
        self._unwatch = self._runtime.watch_clock(self._on_clock)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a put in progress is finished first."""
        self._unwatch()
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _on_clock(self, seen: Overdue) -> None:
        """Wake the thread if schedules were changed or the store's clock was set."""
        noticed = time.monotonic()
        if seen.altered != self._altered:
            self._altered, self._read_at = seen.altered, 0.0
            self._wake.set()
        if self._clock is not None and abs(seen.now - self._clock[0] - (noticed - self._clock[1]) * 1000) > _JUMP_MS:
            self._wake.set()
        self._clock = seen.now, noticed
        if self._runs:
            self._wake.set()

    def ended(self, task: Task, error: BaseException | None, seconds: float) -> None:
        """Record a finished run, if it was a tick, for operators. Safe from any thread."""
        data = task.data
        if isinstance(data, dict) and "tick" in data and task.address:
            failure = None if error is None else names.failure(error)[:_MOST_ERROR]
            self._runs[task.address.rpartition(" #")[2]] = Run(task.taken or 0.0, round(seconds, 3), failure)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            pause = self.put_due()
            if not self._saved:
                self.save()
                pause = min(pause, RETRY_SECONDS)
            if self._runs:
                self.save_runs()
            self._wake.wait(pause)

    def save_runs(self) -> None:
        """Save the last runs of ticks, in one call, at most once a second. Errors are logged and ignored."""
        runs, self._runs = self._runs, {}
        try:
            schedule_status.save_runs(self._tube(SCHEDULE_TUBE), dict(runs))  # a handler may be ending
        except PenstockError as error:
            log.warning("could not save the last runs of schedules (%s); leaving them out", error)

    def save(self) -> None:
        """Save the schedules of decorators, so that operators see them."""
        try:
            schedule_status.save(self._tube(SCHEDULE_TUBE), [each.record for each in self._declared])
            self._saved = True
        except PenstockError as error:
            log.warning("could not save the schedules for operators (%s); retrying", error)

    def put_due(self) -> float:
        """Put the ticks that are due. Returns the seconds until the next call."""
        try:
            if time.monotonic() >= self._read_at:
                self._read_at = time.monotonic() + READ_SECONDS
                self._read_stored()
            planned = [*self._declared, *self._stored.values()]
            if not planned:
                return MAX_SLEEP_SECONDS
            now = self._runtime.store.now()
            if self._put_until is None:
                self._read_put_until(planned, now)
            by_tube: dict[str, list[Planned]] = {}
            for each in planned:
                if each.is_due(now):
                    by_tube.setdefault(each.record.tube, []).append(each)
            paused = self._paused([each.record.key for some in by_tube.values() for each in some])
            done = [self._put_into_tube(name, some, paused, now) for name, some in by_tube.items()]
            self._keep_put_until(max((each.until or 0 for some in by_tube.values() for each in some), default=0), now)
            ahead = min(each.put_at for each in planned) - self._runtime.store.now()
        except PenstockError as error:
            self._read_at = 0.0
            log.warning("could not check for due ticks (%s); retrying", error)
            return RETRY_SECONDS
        return min(max(ahead / 1000, 0.02), MAX_SLEEP_SECONDS) if all(done) else RETRY_SECONDS

    def _read_put_until(self, planned: Sequence[Planned], now: int) -> None:
        """Load the time up to which ticks were put, so that a small step back of the clock does not repeat them."""
        [record] = self._runtime.store.get(self._tube(SCHEDULE_TUBE).stored, [_PUT_UNTIL])
        data: Any = None if record is None else codec.decode(record.payload)
        self._put_until = 0 if data is None else int(data["put until"])
        if now + LEAD_MS < self._put_until <= now + LEAD_MS + SET_BACK_MS:
            for each in planned:
                each.until = self._put_until

    def _keep_put_until(self, until: int, now: int) -> None:
        """Store the time up to which ticks are put, at most once a second."""
        known = self._put_until or 0
        if until >= known + RETRY_SECONDS * 1000 or known > now + LEAD_MS + SET_BACK_MS:
            options: Any = {"address": _PUT_UNTIL, "on_duplicate": "replace", "delay": MAX_SECONDS}
            self._tube(SCHEDULE_TUBE).put({"put until": until}, **options)
            self._put_until = until

    def _paused(self, keys: Sequence[str]) -> set[str]:
        return schedule_status.paused_keys(self._tube(SCHEDULE_TUBE), keys) if keys else set()

    def _put_into_tube(self, name: str, due: list[Planned], paused: set[str], now: int) -> bool:
        """Put the ticks of one tube in one call. Returns False if it must be retried soon."""
        try:
            tube = self._tube(name)
            stopped = self._runtime.store.counters(tube.stored).paused
            held = [each for each in due if stopped or each.record.key in paused]
            for each in held:
                _skip_paused(each, now)
            free = due if not held else [each for each in due if each not in held]
            return self._put(tube, free, now) and not held
        except NoSuchTube:
            self._tubes.clear()  # dropped since it was opened
        except PenstockError as error:
            log.warning("could not put ticks into tube %s (%s); retrying", name, error)
        return False

    def _put(self, tube: Tube, planned: Sequence[Planned], now: int) -> bool:
        """Put the due ticks. Returns False if more were missed than one step holds."""
        marks = self._read_marks(tube, [each for each in planned if each.marked])
        found: list[tuple[Planned, Due]] = []
        ticks: list[tuple[Planned, Tick]] = []
        new_marks: list[object] = []
        for each in planned:
            until = marks.get(each.record.key) if each.marked else each.until
            due = each.find_due(until, now)
            found.append((each, due))
            ticks += [(each, tick) for tick in due.ticks]
            if each.marked and (due.ticks or until is None):
                new_marks.append(each.mark(due.until))
        tasks = tube.put_many([*(each.item(tick) for each, tick in ticks), *new_marks]) if ticks or new_marks else []
        for each, due in found:
            each.put(due)
            if due.late:
                _not_put(each, due.late, "this worker was late, or the store's clock was set")
        for (each, tick), task in zip(ticks, tasks, strict=False):
            _log_skipped(each, tick, task)
        return all(due.until > now for _, due in found)

    def _read_marks(self, tube: Tube, planned: Sequence[Planned]) -> dict[str, int]:
        """Load the times up to which any worker put ticks of these schedules."""
        if not planned:
            return {}
        records = self._runtime.store.get(tube.stored, [each.record.address("mark") for each in planned])
        marks: dict[str, int] = {}
        for each, record in zip(planned, records, strict=True):
            data: Any = None if record is None else codec.decode(record.payload)
            if data is not None and data["plan"] == each.plan.text:
                marks[each.record.key] = int(data["until"])
        return marks

    def _read_stored(self) -> None:
        """Read the stored schedules. Future ticks of removed or changed ones are deleted."""
        before, self._stored = self._stored, {}
        for record in self._stored_records():
            old = before.get(record.key)
            if old is not None and old.record == record:
                self._stored[record.key] = before.pop(record.key)
            else:
                self._stored[record.key] = Planned(record)
        for gone in before.values():
            self._delete_future_ticks(gone, self._stored.get(gone.record.key))

    def _stored_records(self) -> Iterable[ScheduleRecord]:
        if not self._runtime.store.load_tubes([SCHEDULE_TUBE]):
            return []
        return [each for each in schedule_status.read_all(self._tube(SCHEDULE_TUBE)).records if each.name]

    def _delete_future_ticks(self, gone: Planned, new: Planned | None) -> None:
        """Delete future ticks of a removed or changed schedule, except those that the changed schedule has, too."""
        tube, now = self._tube(gone.record.tube), self._runtime.store.now()
        addresses, at = [gone.address(now)], gone.plan.after(now)
        while at <= min(gone.until or 0, now + LEAD_MS):
            addresses.append(gone.address(at))
            at = gone.plan.after(at)
        for record in self._runtime.store.get(tube.stored, list(dict.fromkeys(addresses))):
            if record is not None and record.state == "~" and not record.attempts:
                data: Any = codec.decode(record.payload)
                if new is None or not new.has(data):
                    tube.cancel(record.id)

    def _tube(self, name: str) -> Tube:
        tube = self._tubes.get(name)
        if tube is None:
            tube = self._tubes[name] = self._broker.tube(name)
        return tube


def _skip_paused(planned: Planned, now: int) -> None:
    """Skip the ticks of a paused schedule, and log them. After the pause, `catch_up` decides about them."""
    past = [] if planned.until is None else past_ticks(planned.plan, planned.until, now)
    if past:
        _not_put(planned, past, "it is paused")
    planned.until = max(now, planned.until or 0)


def _log_skipped(planned: Planned, tick: Tick, task: Task) -> None:
    """Log a tick that was not put, or that will not run."""
    data = task.data
    if not planned.record.overlap and isinstance(data, dict) and data.get("tick") != tick.at:
        _not_put(planned, [tick.at], f"the last one is still in tube {planned.record.tube}")
    elif record_of(task).created >= tick.before:
        _not_put(planned, [tick.at], "this worker put it too late; it runs only if another worker put it in time")


def _not_put(planned: Planned, ats: Sequence[int], why: str) -> None:
    which = _shown(ats[0]) if len(ats) == 1 else f"{len(ats)} from {_shown(ats[0])} to {_shown(ats[-1])}"
    log.warning("skipped a tick of schedule %s (%s): %s", planned.record.schedule, which, why)


def _shown(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def _must_fit(tube: Tube) -> None:
    """Raise UnsupportedOption if the tube cannot hold ticks."""
    if "delay" not in tube.stored.kind.accepts:
        refuse_option(tube.stored.kind, "delay")
