"""Ids that are texts: the caller's own in kind round, `<ms>-<seq>` in kind reliable."""

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
    """An id as callers of an unleased kind may give it. Unknown ones are the store's to refuse."""
    return names.label("id", value) if kind.hand_out == CLOCK else message_id(value)


def message_id(value: object) -> str:
    """An id of kind reliable."""
    mark = read_mark(value) if isinstance(value, str) else None
    if mark is None or max(mark) > names.MAX_ID:
        raise BadValue(f"task id {names.shown(value)} is none of this tube's: they look like '1599352749159-4'")
    return shown_mark(mark)


def next_marks(last: Mark, now: int, count: int) -> list[Mark]:
    """The ids of so many new messages: above the last one, also when the clock was set back."""
    ms, seq = (now, 0) if now > last[0] else last
    return [(ms, seq + step) for step in range(1, count + 1)]


def read_mark(id: str) -> Mark | None:
    """The two numbers of a message id; None where it is none."""
    parts = _MESSAGE.fullmatch(id)
    return None if parts is None else (int(parts[1]), int(parts[2]))


def shown_mark(mark: Mark) -> str:
    """The id as people see it."""
    return f"{mark[0]}-{mark[1]}"


def needed_mark(last: Mark, newest: Record | None) -> Mark | None:
    """The last message id that a tube must know; None where it does."""
    mark = None if newest is None or newest.address is None else read_mark(newest.address)
    return mark if mark is not None and mark > last else None
