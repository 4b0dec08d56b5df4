"""The file format of export and import: one JSON object per task, group or outcome, validated like a put.

Times are milliseconds since the epoch. Data is JSON under `data`, bytes are base64 under `base64`, and data that the
store could not read is base64 under `unreadable`. Fields with default values are left out.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.core import codec, names
from penstock.core.attempts import MAX_ATTEMPTS_KEPT, MAX_TRACEBACK, Failure, append, entry_of, read_attempts
from penstock.core.chain import checked_reply
from penstock.core.ending import STATUSES, Ending
from penstock.core.group import HOLD, ON_FAILURE, OPEN, STARTED, Group
from penstock.core.ids import read_mark, text_id
from penstock.core.kind import DELIVER, Kind
from penstock.core.lease import CALL_BITS, MAX_NUMBER, number_of
from penstock.core.options import checked_extra
from penstock.core.task import NO_UTUBE, UNSTARTED, Extra, Record
from penstock.core.values import MAX_SECONDS, number
from penstock.errors import BadValue

# Numbers of a file stay well below the limits of the stores, so that counting continues after an import.
_Int = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Small = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_HandOuts = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
_Moment = Annotated[int, Meta(ge=0, le=2**47 - 1)]
_Span = Annotated[int, Meta(ge=0, le=MAX_SECONDS * 1000)]
MAX_TASK_ID = 2**39 - 1
MAX_MARK = 2**47 - 1
_Text = Annotated[str, Meta(max_length=names.MAX_TEXT)]


class AttemptLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A failed attempt."""

    attempt: _HandOuts
    at: _Moment
    host: Annotated[str, Meta(max_length=255)] = ""
    error: _Text = ""
    traceback: Annotated[str, Meta(max_length=MAX_TRACEBACK)] = ""


_Errors = Annotated[list[AttemptLine], Meta(max_length=MAX_ATTEMPTS_KEPT)]
# The states that a file may name, by whether the kind leases.
_LEASED, _UNLEASED = frozenset("rt~!" + UNSTARTED), frozenset("rt")


class Data(Struct, omit_defaults=True):
    """Stored bytes in one of three forms."""

    data: msgspec.Raw | UnsetType = UNSET
    base64: str | None = None
    unreadable: str | None = None


class TaskLine(Extra, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The line of a task."""

    data: msgspec.Raw | UnsetType = UNSET
    base64: str | None = None
    unreadable: str | None = None

    id: Annotated[int, Meta(ge=1, le=MAX_TASK_ID)]
    state: str
    created: _Moment
    rank: tuple[float, float] = (0, 0)
    pri: _Small = 0
    utube: str | None = None
    attempts: _HandOuts = 0
    lease: _HandOuts = 0
    taken: _Moment | None = None
    expires: _Moment | None = None
    at: _Moment | None = None
    ttr: _Span | None = None
    reason: _Text | None = None
    address: str | None = None
    reply_to: str | None = None
    group: _Int | None = None
    errors: _Errors = msgspec.field(default_factory=list)


class GroupLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One group that is not over; tasks refer to its number."""

    no: _Int
    name: str
    state: str
    total: _Small
    end: Data | None = None
    cancel: Data | None = None
    on_failure: str = HOLD
    failed: _Small = 0


class OutcomeLine(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How an addressed task ended."""

    id: _Int
    address: str
    status: str
    until: _Moment
    result: Data | None = None
    error: _Text | None = None
    code: str | int | None = None
    errors: _Errors = []


def task_line(record: Record) -> TaskLine:
    """The line of a task. A task that waits in its micro-queue is written as ready."""
    data = data_line(record.payload)
    return TaskLine(
        data=data.data, base64=data.base64, unreadable=data.unreadable, id=record.id,
        state="r" if record.state == "q" else record.state, created=record.created, rank=(record.rank1, record.rank2),
        pri=record.pri, utube=record.utube, attempts=min(record.attempts, MAX_NUMBER),
        lease=min(number_of(record.lease), MAX_NUMBER), taken=record.taken, expires=record.expires, at=record.at,
        ttr=record.ttr, reason=record.reason, address=record.address, reply_to=record.reply_to, group=record.group_no,
        errors=error_lines(record.errors), **msgspec.structs.asdict(record.options),
    )  # fmt: skip


def read_task(line: TaskLine, kind: Kind, groups: dict[int, str]) -> Record:
    """The task of a line. Raises BadValue for values that no put could have made. `groups`: number -> name."""
    if line.state not in (_LEASED if kind.leased else _UNLEASED):
        raise BadValue(f"task {line.id} has the state {names.shown(line.state)}, which kind {kind.name} does not have")
    if line.group is not None and line.group not in groups:
        raise BadValue(
            f"task {line.id} is of group {line.group}, which no earlier line has: put the line of the group first"
        )
    if line.state == UNSTARTED and line.group is None:
        raise BadValue(f"task {line.id} waits for the start of its group, but has no group: give its group")
    # A put without ttr gets its ttl as ttr.
    for option, value in (("pri", line.pri), ("utube", line.utube), ("ttl", line.expires), ("ttr", line.ttr)):
        if value and not kind.has(option) and not (option == "ttr" and kind.has("ttl")):
            raise BadValue(f"task {line.id} has a {option}, which kind {kind.name} does not accept")
    if line.state == "~" and line.at is None:
        raise BadValue(f"task {line.id} is delayed, but has no due time: give at")
    if line.taken is None and (line.attempts or line.lease):
        raise BadValue(f"task {line.id} was handed out, but has no time for it: give taken")
    if kind.leased:
        address = None if line.address is None else names.label("address", line.address)
    else:
        address = _own_id(kind, line)
    return Record(
        id=line.id, state=line.state, rank1=number("rank", line.rank[0]), rank2=number("rank", line.rank[1]),
        pri=line.pri, utube=_utube(kind, line.utube), attempts=line.attempts, lease=line.lease << CALL_BITS,
        created=line.created, taken=line.taken, expires=line.expires, at=line.at, ttr=line.ttr,
        owner=None, reason=names.text("reason", line.reason), payload=read_data(line), address=address,
        extra=checked_extra({option: getattr(line, option) for option in Extra.__struct_fields__}),
         reply_to=checked_reply("reply_to", line.reply_to),
        group=None if line.group is None else groups[line.group], group_no=line.group,
        errors=_read_errors(line.errors) if line.taken is not None else None,
    )  # fmt: skip


def error_lines(stored: bytes | None) -> list[AttemptLine]:
    """The lines of failed attempts."""
    found = [(each, round(each.at * 1000)) for each in read_attempts(stored)]
    return [
        AttemptLine(attempt=each.attempt, at=at, host=each.host, error=each.error, traceback=each.traceback)
        for each, at in found
    ]


def _read_errors(lines: list[AttemptLine]) -> bytes | None:
    stored: bytes | None = None
    for line in lines:
        texts = [names.text("errors", text) or "" for text in (line.error, line.traceback, line.host)]
        stored = append(stored, entry_of(line.attempt, line.at, Failure(*texts)))
    return stored


def group_line(group: Group) -> GroupLine:
    """The line of a group."""
    end = None if group.end is None else data_line(group.end)
    cancel = None if group.cancel is None else data_line(group.cancel)
    return GroupLine(
        no=group.no, name=group.name, state=group.state, total=group.total, end=end, cancel=cancel,
        on_failure=group.on_failure, failed=group.failed,
    )  # fmt: skip


def read_group(line: GroupLine) -> Group:
    """The group of a line."""
    if line.state not in (OPEN, STARTED):
        raise BadValue(f"group {names.shown(line.name)} is {names.shown(line.state)}: files have open and started ones")
    end = None if line.end is None else read_data(line.end)
    cancel = None if line.cancel is None else read_data(line.cancel)
    if line.on_failure not in ON_FAILURE:
        raise BadValue(f"group {line.name}: on_failure {names.shown(line.on_failure)} is not {', '.join(ON_FAILURE)}")
    name = names.name("group", line.name)
    if line.failed > line.total:
        raise BadValue(f"group {line.name}: {line.failed} of {line.total} tasks failed, which is more than there were")
    return Group(
        line.no, name, line.state, line.total, 0, end, cancel, failed=line.failed, on_failure=line.on_failure
    )  # fmt: skip


def ending_parts(ending: Ending) -> tuple[Data | None, str | None, str | int | None]:
    """The result, error and code of an outcome as fields of its line."""
    result = None if ending.result is None else data_line(ending.result)
    code = None if ending.code is None else msgspec.json.decode(ending.code, type=str | int)
    return result, ending.error, code


def read_ending(line: OutcomeLine) -> Ending:
    """The outcome of a line."""
    if line.status not in STATUSES:
        raise BadValue(f"the outcome of task {line.id} has the status {names.shown(line.status)}")
    result = None if line.result is None else read_data(line.result)
    code = None if line.code is None else codec.encode(line.code).decode()
    return Ending(line.status, result, names.text("error", line.error), code, _read_errors(line.errors))


def data_line(payload: bytes) -> Data:
    """Stored data as fields of a line."""
    if codec.is_raw(payload):
        return Data(base64=base64.b64encode(payload[1:]).decode())
    try:
        codec.decode(payload)
    except BadValue:
        return Data(unreadable=base64.b64encode(payload).decode())
    return Data(data=msgspec.Raw(payload))


def read_data(line: Data | TaskLine) -> bytes:
    """The payload to store. JSON is decoded and encoded again, so that only valid JSON is stored."""
    given = [form for form in (line.data, line.base64, line.unreadable) if form is not None and form is not UNSET]
    if len(given) != 1:
        raise BadValue("a line must have its data in one field: give one of data, base64 and unreadable")
    if isinstance(line.data, msgspec.Raw):
        return codec.encode(codec.decode(bytes(line.data)))
    try:
        content = base64.b64decode(line.base64 or line.unreadable or "", validate=True)
    except (binascii.Error, ValueError):
        raise BadValue("the bytes of data are not base64") from None
    return codec.encode(content) if line.base64 is not None else content


def _utube(kind: Kind, utube: str | None) -> str | None:
    if not kind.per_utube:
        return None if utube is None else names.utube(utube)
    return NO_UTUBE if not utube else names.utube(utube)


def _own_id(kind: Kind, line: TaskLine) -> str:
    if line.address is None:
        raise BadValue(f"task {line.id} has no address: kind {kind.name} needs the public id there")
    id = text_id(kind, line.address)
    mark = read_mark(id) if kind.hand_out == DELIVER else None
    if mark is not None and max(mark) > MAX_MARK:
        raise BadValue(f"task {line.id} has the id {id}: its two numbers may be at most {MAX_MARK}")
    return id
