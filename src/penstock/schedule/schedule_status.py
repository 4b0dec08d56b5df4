"""Schedules as the store has them: workers save each one, so that operators can list, pause and run it.

Saved schedules and pauses are tasks of one tube that never become ready, found by their addresses. A pause is a
separate task, so that a worker that saves its schedules again cannot undo it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker.tube import Tube
from penstock.broker.tube_factory import find_tube
from penstock.core.names import shown
from penstock.core.numbers import MAX_SECONDS
from penstock.core.task import Status, Task
from penstock.errors import BadValue, NoSuchTube, NotFound
from penstock.schedule.plan import When, make_plan

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Schedule

# The tube of saved schedules, and of the ticks whose decorator names no tube.
SCHEDULE_TUBE = "penstock.schedule"
# Tasks that are searched for saved schedules, which were put before most ticks and come first.
LOOKED_THROUGH = 2000
_KEY = re.compile("[0-9a-f]{16}")


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A saved schedule: when it is due, what is put then, and into which tube."""

    key: str
    schedule: str
    plan: str
    when: When
    tube: str
    catch_up: str
    data: dict[str, Any]
    options: dict[str, Any]


class ScheduleStatus(msgspec.Struct, frozen=True):
    """A saved schedule for display: its plan in words, the tube of its ticks, when the next is due."""

    key: str
    schedule: str
    plan: str
    tube: str
    catch_up: str
    paused: bool
    next: float | None


def save(schedule_tube: Tube, schedules: Iterable[tuple[Schedule, Tube]]) -> None:
    """Save each schedule with the tube of its ticks, replacing what was saved before."""
    schedule_tube.put_many([({"card": _card(*each)}, _kept("card", each[0].key, "replace")) for each in schedules])


def _card(schedule: Schedule, tube: Tube) -> dict[str, Any]:
    data, options = schedule.handler.make_item(tube, {}, {})
    kept: Any = {name: value for name, value in options.items() if value is not None and name != "address"}
    card = ScheduleRecord(
        schedule.key, schedule.handler.name, schedule.plan.text, schedule.plan.when, tube.name, schedule.catch_up,
        msgspec.to_builtins(data), kept,
    )  # fmt: skip
    built: dict[str, Any] = msgspec.to_builtins(card)
    return built


def _kept(what: str, key: str, on_duplicate: str) -> dict[str, Any]:
    return {"address": f"{what} #{key}", "on_duplicate": on_duplicate, "delay": MAX_SECONDS}


def listed(schedule_tube: Tube) -> list[ScheduleStatus]:
    """The schedules by name; of one that is paused no tick is due."""
    found = schedule_tube.tasks(Status.DELAYED, limit=LOOKED_THROUGH)
    paused = {task.address for task in found}
    known = [card for task in found if (card := _read(task)) is not None]
    known.sort(key=lambda card: (card.schedule, card.key))
    now = schedule_tube.runtime.store.now()
    return [_listed(card, f"pause #{card.key}" in paused, now) for card in known]


def _listed(card: ScheduleRecord, paused: bool, now: int) -> ScheduleStatus:
    due = None if paused else make_plan(card.when).after(now) / 1000
    return ScheduleStatus(card.key, card.schedule, card.plan, card.tube, card.catch_up, paused, due)


def find(schedule_tube: Tube, key: str) -> ScheduleRecord:
    """The card of that key; NotFound when there is none."""
    id = _id(schedule_tube, "card", key)
    card = None if id is None else _read(schedule_tube.peek(id))
    if card is None:
        raise NotFound(f"schedule {shown(key)} is not known: it appears once a worker that has it was started")
    return card


def key_of(schedule_tube: Tube, name: str) -> str:
    """The key of the one schedule of the function of that name; what names no function is a key itself."""
    named = [each for each in listed(schedule_tube) if each.schedule == name]
    if len(named) > 1:
        keys = ", ".join(f"{each.key} ({each.plan})" for each in named)
        raise BadValue(f"{name} has {len(named)} schedules: name one of them by its key, {keys}")
    return named[0].key if named else name


def is_paused(schedule_tube: Tube, key: str) -> bool:
    """Whether its ticks are held back; not where somebody dropped the tube of the cards."""
    try:
        return _id(schedule_tube, "pause", key) is not None
    except NoSuchTube:
        return False


def pause(schedule_tube: Tube, key: str) -> None:
    """Put no more ticks of it; those that are put already, for the next seconds, are run."""
    schedule_tube.put({"pause": find(schedule_tube, key).key}, **_kept("pause", key, "ignore"))


def resume(schedule_tube: Tube, key: str) -> None:
    """End a pause."""
    _remove(schedule_tube, "pause", find(schedule_tube, key).key)


def forget(schedule_tube: Tube, key: str) -> None:
    """Remove the card of a schedule that no worker has any more, and its pause; a worker that has it brings it back."""
    _remove(schedule_tube, "card", find(schedule_tube, key).key)
    _remove(schedule_tube, "pause", key)


def run_now(schedule_tube: Tube, key: str) -> Task:
    """Put what it puts at its times, for now; also while it is paused."""
    card = find(schedule_tube, key)
    now = schedule_tube.runtime.store.now()
    moment = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")
    tube = find_tube(schedule_tube.runtime, schedule_tube.session_handle, card.tube)
    address = f"{card.schedule.encode()[:100].decode(errors='ignore')} {moment} by hand #{key}"
    # A second press within the same millisecond is the same run.
    return tube.put({**card.data, "tick": now}, address=address, on_duplicate="ignore", **card.options)


def _remove(schedule_tube: Tube, what: str, key: str) -> None:
    id = _id(schedule_tube, what, key)
    if id is not None:
        schedule_tube.delete(id)


def _id(schedule_tube: Tube, what: str, key: str) -> int | None:
    if not _KEY.fullmatch(key):
        return None
    return schedule_tube.runtime.store.outcome(schedule_tube.stored, f"{what} #{key}").id


def _read(task: Task) -> ScheduleRecord | None:
    """The card that a task is; None where it is something else, or of a version that this one cannot read."""
    data = task.data
    if not isinstance(data, dict) or data.keys() != {"card"}:
        return None
    try:
        card = msgspec.convert(data["card"], ScheduleRecord)
        make_plan(card.when)
    except (msgspec.ValidationError, ValueError):
        return None
    return card if task.address == f"card #{card.key}" else None
