"""Stored schedules: those of decorators, which workers save for operators, and those set by `app.schedules.set`.

Saved schedules and pauses are tasks of one tube that never become ready, found by their addresses. A pause is a
separate task, so that a worker that saves its schedules again cannot undo it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from penstock.broker.tube import Tube
from penstock.broker.tube_factory import find_tube
from penstock.core.names import shown
from penstock.core.task import Status, Task, record_of
from penstock.core.values import MAX_SECONDS
from penstock.errors import BadValue, NoSuchTube, NotFound
from penstock.schedule.plan import When, make_plan

# The tube of saved schedules, and of the ticks whose decorator names no tube.
SCHEDULE_TUBE = "penstock.schedule"
# The number of tasks that a dashboard page searches for the next ticks.
TASKS_SEARCHED = 2000
# Tasks read at once in search of saved schedules.
_PAGE = 1000
_KEY = re.compile("[0-9a-f]{16}")


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A saved schedule: when it is due, what is put then, and into which tube. `name` is "" for one of a decorator."""

    key: str
    schedule: str
    plan: str
    when: When
    tube: str
    catch_up: str
    data: dict[str, Any]
    options: dict[str, Any]
    overlap: bool = True
    name: str = ""

    def address(self, of: str) -> str:
        """The address of a saved schedule: its name, cut to fit, and its key."""
        return f"{self.schedule.encode()[:100].decode(errors='ignore')} {of} #{self.key}"


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as `app.schedules.list()` returns it; `next` in seconds since the epoch, None while it is paused."""

    name: str
    when: str | float
    task: str
    args: Any
    timezone: str | None
    next: float | None
    paused: bool


class Run(msgspec.Struct, frozen=True):
    """The last run of a schedule: when it was taken, how long it took, and its error if it failed."""

    at: float
    seconds: float
    error: str | None


class ScheduleStatus(msgspec.Struct, frozen=True):
    """A saved schedule for display: its plan in words, the tube of its ticks, when the next is due, its last run."""

    key: str
    schedule: str
    plan: str
    tube: str
    catch_up: str
    paused: bool
    next: float | None
    last: Run | None


class Saved(NamedTuple):
    """All saved schedules by name, the keys of those that are paused, and their last runs by key."""

    records: list[ScheduleRecord]
    paused: set[str]
    runs: dict[str, Run]


def key_of_stored(name: str) -> str:
    """The key of the schedule that `app.schedules.set` stored under that name."""
    return _hash(f"stored {name}")


def _hash(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def save(schedule_tube: Tube, records: Sequence[ScheduleRecord]) -> None:
    """Save each schedule, replacing what was saved before, and the names of those of decorators."""
    names = dict.fromkeys(each.schedule for each in records if not each.name)
    schedule_tube.put_many(
        [({"card": msgspec.to_builtins(each)}, _kept("card", each.key, "replace")) for each in records]
        + [({"declared": name}, _kept("declared", _hash(name), "ignore")) for name in names]
    )


def is_declared(schedule_tube: Tube, name: str) -> bool:
    """Whether a decorator's schedule of that name is saved.

    A saved name outlives its schedules. So it is a hint, which saves reading all schedules for most names.
    """
    if _id(schedule_tube, "declared", _hash(name)) is None:
        return False
    return any(each.schedule == name and not each.name for each in read_all(schedule_tube).records)


def save_runs(schedule_tube: Tube, runs: Mapping[str, Run]) -> None:
    """Save the last run of each of these schedules."""
    schedule_tube.put_many(
        [({"last": msgspec.to_builtins(run)}, _kept("last", key, "replace")) for key, run in runs.items()]
    )


def announce(schedule_tube: Tube) -> None:
    """Notify all workers to read the stored schedules again."""
    schedule_tube.runtime.store.write_tube(schedule_tube.stored, changes={})


def _kept(what: str, key: str, on_duplicate: str) -> dict[str, Any]:
    return {"address": f"{what} #{key}", "on_duplicate": on_duplicate, "delay": MAX_SECONDS}


def read_all(schedule_tube: Tube) -> Saved:
    """Read all saved schedules."""
    records: list[ScheduleRecord] = []
    paused: set[str] = set()
    runs: dict[str, Run] = {}
    after: int | None = None
    while True:
        page = schedule_tube.tasks(Status.DELAYED, limit=_PAGE, after=after)
        records += [record for task in page if (record := _read(task)) is not None]
        for task in page:
            what, _, key = (task.address or "").partition(" #")
            if what == "pause":
                paused.add(key)
            elif what == "last" and (run := _read_run(task)) is not None:
                runs[key] = run
        if len(page) < _PAGE:
            return Saved(sorted(records, key=lambda record: (record.schedule, record.key)), paused, runs)
        after = record_of(page[-1]).id


def listed(schedule_tube: Tube) -> list[ScheduleStatus]:
    """The schedules, sorted by name; a paused one has no next tick."""
    saved, now = read_all(schedule_tube), schedule_tube.runtime.store.now()
    found: list[ScheduleStatus] = []
    for record in saved.records:
        paused = record.key in saved.paused
        shown = record.key, record.schedule, record.plan, record.tube, record.catch_up, paused
        found.append(ScheduleStatus(*shown, _next(record, paused, now), saved.runs.get(record.key)))
    return found


def described(record: ScheduleRecord, paused: bool, now: int) -> Schedule:
    """The schedule as `app.schedules.list()` returns it."""
    when = record.when.get("cron", record.when.get("every", 0))
    zone, task, args = record.when.get("timezone"), str(record.data.get("task")), record.data.get("args")
    return Schedule(
        record.schedule, when, task, args, None if zone is None else str(zone), _next(record, paused, now), paused
    )


def _next(record: ScheduleRecord, paused: bool, now: int) -> float | None:
    return None if paused else make_plan(record.when).after(now) / 1000


def find(schedule_tube: Tube, key: str) -> ScheduleRecord:
    """The saved schedule of that key. Raises NotFound if there is none."""
    id = _id(schedule_tube, "card", key)
    record = None if id is None else _read(schedule_tube.peek(id))
    if record is None:
        raise NotFound(f"schedule {shown(key)} does not exist: start a worker whose app has it, or check the key")
    return record


def key_of(schedule_tube: Tube, name: str) -> str:
    """The key of a handler's only schedule. A name that is not that of a handler is returned as a key."""
    named = [each for each in listed(schedule_tube) if each.schedule == name]
    if len(named) > 1:
        keys = ", ".join(f"{each.key} ({each.plan})" for each in named)
        raise BadValue(f"{name} has {len(named)} schedules: give the key of one, {keys}")
    return named[0].key if named else name


def paused_keys(schedule_tube: Tube, keys: Sequence[str]) -> set[str]:
    """Those of the keys that are paused, read in one query; none if the tube of saved schedules was dropped."""
    try:
        found = schedule_tube.runtime.store.get(schedule_tube.stored, [f"pause #{key}" for key in keys])
    except NoSuchTube:
        return set()
    return {key for key, record in zip(keys, found, strict=True) if record is not None}


def pause(schedule_tube: Tube, key: str) -> None:
    """Pause the schedule. Ticks of the next few seconds, which are already put, still run."""
    schedule_tube.put({"pause": find(schedule_tube, key).key}, **_kept("pause", key, "ignore"))


def resume(schedule_tube: Tube, key: str) -> None:
    """End a pause."""
    _remove(schedule_tube, "pause", find(schedule_tube, key).key)


def forget(schedule_tube: Tube, key: str) -> None:
    """Remove a stored schedule, or the record of one that no worker has any more, and its pause."""
    _remove(schedule_tube, "card", find(schedule_tube, key).key)
    _remove(schedule_tube, "pause", key)
    _remove(schedule_tube, "last", key)
    announce(schedule_tube)


def run_now(schedule_tube: Tube, key: str) -> Task:
    """Put the schedule's task now, even if the schedule is paused."""
    record = find(schedule_tube, key)
    now = schedule_tube.runtime.store.now()
    moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")
    tube = find_tube(schedule_tube.runtime, schedule_tube.session_handle, record.tube)
    address = record.address(f"{moment} by hand")
    # A second click within the same millisecond is the same run.
    return tube.put({**record.data, "tick": now}, address=address, on_duplicate="ignore", **record.options)


def _remove(schedule_tube: Tube, what: str, key: str) -> None:
    id = _id(schedule_tube, what, key)
    if id is not None:
        schedule_tube.delete(id)


def _id(schedule_tube: Tube, what: str, key: str) -> int | None:
    if not _KEY.fullmatch(key):
        return None
    return schedule_tube.runtime.store.outcomes(schedule_tube.stored, [f"{what} #{key}"])[0].id


def _read_run(task: Task) -> Run | None:
    data = task.data
    try:
        return msgspec.convert(data["last"], Run) if isinstance(data, dict) else None
    except (msgspec.ValidationError, KeyError):
        return None


def _read(task: Task) -> ScheduleRecord | None:
    """The schedule saved in a task; None if the task is something else or of an unknown version."""
    data = task.data
    if not isinstance(data, dict) or data.keys() != {"card"}:
        return None
    try:
        record = msgspec.convert(data["card"], ScheduleRecord)
        make_plan(record.when)
    except (msgspec.ValidationError, ValueError):
        return None
    return record if task.address == f"card #{record.key}" else None
