"""Groups: tasks that start together and have end work. The record of a group decides what its tasks may do.

A group is open until it is started. It is over when nothing of it is left: done after a start, cancelled after a
cancel; until then a cancelled one is cancelling. Start and cancel change the record alone; the tasks follow.
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

# What becomes of a task that would be buried: it is buried; it fails, and its group ends without it; it fails, and its
# group is cancelled.
HOLD = "hold"
CONTINUE = "continue"
CANCEL = "cancel"
ON_FAILURE = (HOLD, CONTINUE, CANCEL)

LIVE = (OPEN, STARTED)
OVER = (DONE, CANCELLED)
_MEMBER = re.compile(r"group:(\d+)\.(\d+)")


class Group(msgspec.Struct):
    """A group as stores keep it: how many tasks were ever put, how many are left, and what follows its end.

    `end` and `cancel` are encoded data. `moving` while tasks must follow a start or a cancel. An over one is
    forgotten at `until`. `failed` counts the tasks that failed; `on_failure` says what becomes of one that would be
    buried.
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
    """The address of the task that `app.group` puts at a place, by which its outcome is found."""
    return f"group:{no}.{place}"


def moved_address(address: str | None, numbers: Mapping[int, int]) -> str | None:
    """The address of a task after a move in which groups got other numbers; None if its group was not moved."""
    member = None if address is None else _MEMBER.fullmatch(address)
    if member is None:
        return address
    here = numbers.get(int(member[1]))
    return None if here is None else member_address(here, int(member[2]))


def must_live(group: Group | None, name: str, now: int) -> Group:
    """The group, if work may be added to it."""
    if group is None or group.state not in LIVE or forgotten(group, now):
        raise ended(name)
    return group


def is_live(name: str) -> BadValue:
    """The error of whoever would begin a group whose name is in use."""
    return BadValue(f"group {name} is live: wait for its end, cancel it, or use another name")


def ended(name: str) -> NotFound:
    """The error of whoever would add to a group that is over."""
    return NotFound(f"group {name} has ended: begin a new one with tube.group({name!r})")


def forgotten(group: Group, now: int) -> bool:
    """Whether it is past its retention, and so nobody's business any more."""
    return group.until is not None and group.until <= now


def turn(group: Group, to: str) -> bool:
    """Start or cancel it; False when that has happened, or it is over."""
    if group.state not in LIVE or (to == STARTED and group.state == STARTED):
        return False
    group.state = STARTED if to == STARTED else CANCELLING
    group.moving = group.left > 0
    return True


def needs_room(group: Group, to: str) -> bool:
    """Whether turning it puts work into the tube at once, where no task of its own makes room."""
    work = group.end if to == STARTED else group.cancel
    return group.left == 0 and work is not None and group.state in LIVE and not (to == group.state == STARTED)


def end(group: Group, until: int) -> bytes | None:
    """Call it over if nothing is left of it, once; the work that is to be put for it, if any."""
    if group.left > 0 or group.state not in (STARTED, CANCELLING):
        return None
    work = group.end if group.state == STARTED else group.cancel
    group.state = DONE if group.state == STARTED else CANCELLED
    group.moving = False
    group.until = until
    return work


def gate(record: Record, change: Change, group: Group) -> Change:
    """What a change of a task becomes in its group."""
    if group.state == CANCELLING and change.state != "-":
        return cancelled(record)
    if group.state == OPEN and change.state == "r":
        return msgspec.structs.replace(change, state=UNSTARTED)
    if change.state == "!" and group.on_failure != HOLD:
        return failed(record, change)
    return change


def leave(group: Group, events: tuple[str, ...]) -> None:
    """One of its tasks has ended; where that was a failure, it may cancel the rest."""
    group.left -= 1
    if "fail" in events:
        group.failed += 1
        if group.on_failure == CANCEL:
            turn(group, CANCELLING)


def held_back(record: Record) -> Change:
    """What repair makes of a task that can be taken before its group is started."""
    return Change(UNSTARTED, (), record.at, record.expires, record.attempts, record.reason)


def followed(record: Record, now: int) -> Change:
    """What the start of its group makes of a task that waited for it: ready, or delayed if its delay is not over."""
    delayed = record.at is not None and record.at != record.expires and record.at > now
    at = record.at if delayed else record.expires
    return Change("~" if delayed else "r", (), at, record.expires, record.attempts, record.reason)
