"""Groups: tasks that start together and have end work.

A group is open until it is started. It is over when no task is left: done after a start, cancelled after a cancel (and
cancelling until then). Start and cancel change only the group's record; its tasks are changed later, in steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from penstock.core.lifecycle import Change, cancelled, failed
from penstock.core.task import UNSTARTED, Record
from penstock.errors import BadValue, NotFound

OPEN = "open"
STARTED = "started"
CANCELLING = "cancelling"
DONE = "done"
CANCELLED = "cancelled"

# For a task that would be buried: bury it; fail it, so that the group can end; fail it and cancel the group.
HOLD = "hold"
CONTINUE = "continue"
CANCEL = "cancel"
ON_FAILURE = (HOLD, CONTINUE, CANCEL)

LIVE = (OPEN, STARTED)
OVER = (DONE, CANCELLED)
_MEMBER = re.compile(r"group:(\d+)\.(\d+)")


class Group(msgspec.Struct):
    """A stored group: how many tasks were put and how many are left, and the work to put when it ends.

    `end` and `cancel` are encoded data. `moving`: some tasks do not yet reflect a start or cancel. A group that is over
    is forgotten at `until`. `failed` counts failed tasks; `on_failure` applies to tasks that would be buried.
    """

    no: int
    name: str
    state: str = OPEN
    total: int = 0
    left: int = 0
    end: bytes | None = None
    cancel: bytes | None = None
    moving: bool = False
    until: int | None = None
    failed: int = 0
    on_failure: str = HOLD


def member_address(no: int, place: int) -> str:
    """The address of the task that `app.group` puts at that place; its outcome is found by this address."""
    return f"group:{no}.{place}"


def moved_address(address: str | None, numbers: Mapping[int, int]) -> str | None:
    """The address of a task after a move that renumbered its group; None if the group was not moved."""
    member = None if address is None else _MEMBER.fullmatch(address)
    if member is None:
        return address
    here = numbers.get(int(member[1]))
    return None if here is None else member_address(here, int(member[2]))


def must_live(group: Group | None, name: str, now: int) -> Group:
    """Return the group if work may be added to it. NotFound if, since a restore, its number is another group's."""
    if group is None or group.name != name or group.state not in LIVE or forgotten(group, now):
        raise ended(name)
    return group


def group_exists(name: str) -> BadValue:
    """The error for beginning a group whose name is in use."""
    return BadValue(f"group {name} is live: wait for its end, cancel it, or use another name")


def ended(name: str) -> NotFound:
    """The error for adding to a group that is over."""
    return NotFound(f"group {name} has ended: begin a new one with tube.group({name!r})")


def forgotten(group: Group, now: int) -> bool:
    """Whether the group is past its retention."""
    return group.until is not None and group.until <= now


def start_or_cancel(group: Group, to: str) -> bool:
    """Start or cancel the group. Returns False if it already is started or cancelled, or is over."""
    if group.state not in LIVE or (to == STARTED and group.state == STARTED):
        return False
    group.state = STARTED if to == STARTED else CANCELLING
    group.moving = group.left > 0
    return True


def needs_room(group: Group, to: str) -> bool:
    """Whether a start or cancel puts work although no task leaves the tube, which may therefore exceed its capacity."""
    work = group.end if to == STARTED else group.cancel
    return group.left == 0 and work is not None and group.state in LIVE and not (to == group.state == STARTED)


def end_if_empty(group: Group, until: int) -> bytes | None:
    """Mark the group as over if no task is left. Returns the work to put, if any; a second call returns None."""
    if group.left > 0 or group.state not in (STARTED, CANCELLING):
        return None
    work = group.end if group.state == STARTED else group.cancel
    group.state = DONE if group.state == STARTED else CANCELLED
    group.moving = False
    group.until = until
    return work


def adjust_to_group(record: Record, change: Change, group: Group) -> Change:
    """Adjust a change of a task to the state of its group."""
    if group.state == CANCELLING and change.state != "-":
        return cancelled(record)
    if group.state == OPEN and change.state == "r":
        return msgspec.structs.replace(change, state=UNSTARTED)
    if change.state == "!" and group.on_failure != HOLD:
        return failed(record, change)
    return change


def count_ended(group: Group, events: tuple[str, ...]) -> None:
    """Count a task that ended. A failure may cancel the rest of the group."""
    group.left -= 1
    if "fail" in events:
        group.failed += 1
        if group.on_failure == CANCEL:
            start_or_cancel(group, CANCELLING)


def held_back(record: Record) -> Change:
    """The change by which repair holds back a task that is takeable although its group is not started."""
    return Change(UNSTARTED, (), record.at, record.expires, record.attempts, record.reason)


def started(record: Record, now: int) -> Change:
    """The change when the task's group starts: ready, or delayed if its delay is not over."""
    delayed = record.at is not None and record.at != record.expires and record.at > now
    at = record.at if delayed else record.expires
    return Change("~" if delayed else "r", (), at, record.expires, record.attempts, record.reason)
