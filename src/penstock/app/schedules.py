"""The schedules of an application: those of its decorators, and those that are stored as data."""

from __future__ import annotations

import builtins
from datetime import timedelta
from typing import Any

from penstock.app.app_connection import AppConnection
from penstock.app.call import Call, must_be_call
from penstock.broker.tube import Tube
from penstock.core import names
from penstock.core.values import Seconds, flag
from penstock.errors import BadValue, NotFound
from penstock.schedule import schedule_status
from penstock.schedule.plan import Cron, Every, Plan
from penstock.schedule.schedule_status import SCHEDULE_TUBE, Schedule
from penstock.schedule.scheduler import Declared, make_record
from penstock.schedule.ticks import check_catch_up

# Put options that the schedule sets itself.
_OWN = ("address", "at", "delay", "on_duplicate", "timeout")


class Schedules:
    """The schedules of a store: `app.schedules`."""

    def __init__(self, connection: AppConnection) -> None:
        self._connection = connection
        self._declared: list[Declared] = []

    def set(
        self, name: str, when: str | Seconds, call: Call[Any], *, timezone: str | None = None,
        catch_up: str | None = "none", overlap: bool | None = True,
    ) -> None:  # fmt: skip
        """Store a schedule: any worker on the store puts the call at the times of a cron text, or every `when` seconds.

        Replaces the schedule of that name; workers notice within a second. With overlap=False, a tick is skipped while
        the last one is still in its tube.
        """
        name, plan = names.name("schedule", name), _plan(when, timezone)
        checked = check_catch_up("none" if catch_up is None else catch_up)
        overlaps = overlap is None or flag("overlap", overlap)
        must_be_call(call)
        for option in _OWN:
            if call.put_options.get(option) is not None:
                raise BadValue(f"a schedule sets {option} itself: leave it out of the call")
        schedule_tube = self._schedule_tube()
        self._refuse_declared(schedule_tube, name)
        tube = self._connection.tube(call.handler.rules.tube)
        data, options = call.item(tube)
        key = schedule_status.key_of_stored(name)
        record = make_record(key, name, plan, tube, checked, overlaps, data, options, name)
        schedule_status.save(schedule_tube, [record])
        schedule_status.announce(schedule_tube)

    def delete(self, name: str) -> None:
        """Delete a schedule that was stored by `set`. Raises NotFound if there is none of that name."""
        name, schedule_tube = names.name("schedule", name), self._schedule_tube()
        self._refuse_declared(schedule_tube, name)
        try:
            schedule_status.forget(schedule_tube, schedule_status.key_of_stored(name))
        except NotFound:
            raise NotFound(f"schedule {name} does not exist: app.schedules.list() returns those that do") from None

    def list(self) -> builtins.list[Schedule]:
        """All schedules, sorted by name: those stored by `set`, and those of decorators in this app or any worker."""
        schedule_tube = self._schedule_tube()
        records, paused, _ = schedule_status.read_all(schedule_tube)
        known = {record.key for record in records}
        for each in self._declared:
            if each.key not in known:
                records.append(each.record(self._connection.tube(each.handler.rules.tube)))
        now = schedule_tube.runtime.store.now()
        found = [schedule_status.described(record, record.key in paused, now) for record in records]
        return sorted(found, key=lambda schedule: schedule.name)

    def _schedule_tube(self) -> Tube:
        return self._connection.tube(SCHEDULE_TUBE)

    def _refuse_declared(self, schedule_tube: Tube, name: str) -> None:
        here = any(each.handler.name == name for each in self._declared)
        if here or schedule_status.is_declared(schedule_tube, name):
            raise BadValue(f"schedule {name} belongs to a decorator: change it there, or choose another name")


def declared(schedules: Schedules) -> list[Declared]:
    """Internal: the schedules of decorators, to which `App` adds."""
    return schedules._declared


def _plan(when: object, timezone: str | None) -> Plan:
    if isinstance(when, str):
        return Cron(when, "UTC" if timezone is None else timezone)
    if timezone is not None:
        raise BadValue(f"timezone {names.shown(timezone)} applies to cron texts only: leave it out with seconds")
    if isinstance(when, bool) or not isinstance(when, (int, float, timedelta)):
        raise BadValue(f"when {names.shown(when)} is {names.kind_of(when)}: give a cron text or seconds")
    return Every(when)
