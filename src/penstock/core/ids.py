"""Text ids: the caller's own in kind round, `<ms>-<seq>` in kind reliable."""

from __future__ import annotations

import re

from penstock.core import names
from penstock.core.kind import CLOCK, Kind
from penstock.core.task import Record
from penstock.errors import BadValue

# The two numbers of a message id, in the order of puts.
Mark = tuple[int, int]

_MESSAGE = re.compile(r"(0|[1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})")


def text_id(kind: Kind, value: object) -> str:
    """Validate an id of an unleased kind. Whether it exists is up to the store."""
    return names.label("id", value) if kind.hand_out == CLOCK else message_id(value)


def message_id(value: object) -> str:
    """Validate an id of kind reliable."""
    mark = read_mark(value) if isinstance(value, str) else None
    if mark is None or max(mark) > names.MAX_ID:
        raise BadValue(f"task id {names.shown(value)} is not an id of this tube: ids look like '1599352749159-4'")
    return shown_mark(mark)


def next_marks(last: Mark, now: int, count: int) -> list[Mark]:
    """The ids of `count` new messages. They are above the last one even if the clock was set back."""
    ms, seq = (now, 0) if now > last[0] else last
    return [(ms, seq + step) for step in range(1, count + 1)]


def read_mark(id: str) -> Mark | None:
    """The two numbers of a message id; None if it is not a message id."""
    parts = _MESSAGE.fullmatch(id)
    return None if parts is None else (int(parts[1]), int(parts[2]))


def shown_mark(mark: Mark) -> str:
    """The public form of a message id."""
    return f"{mark[0]}-{mark[1]}"


def needed_mark(last: Mark, newest: Record | None) -> Mark | None:
    """The last message id that a tube should have stored; None if the stored one is correct."""
    mark = None if newest is None or newest.address is None else read_mark(newest.address)
    return mark if mark is not None and mark > last else None
