"""Groups and outcomes as the scripts store them: see lua/groups.lua and lua/addresses.lua."""

from __future__ import annotations

from penstock.core import group as rules
from penstock.core.ending import Ending
from penstock.core.group import Group

STATES = {"o": rules.OPEN, "s": rules.STARTED, "x": rules.CANCELLING, "d": rules.DONE, "c": rules.CANCELLED}
LETTERS = {state: letter for letter, state in STATES.items()}
_int = int.from_bytes


def read_group(no: int, stored: bytes) -> Group:
    """A group, without its works: those can be as large as data, and only the scripts need them."""
    total, left, over = (_int(stored[start : start + 6], "big") for start in (1, 7, 13))
    return Group(no, stored[19:].decode(), STATES[chr(stored[0])], total, left, until=over or None)


def read_outcome(stored: bytes) -> tuple[str, Ending]:
    """The address, and how its task ended."""
    texts: list[str] = []
    place = 0
    for width in (1, 1, 2, 2):
        start = place + width
        place = start + _int(stored[place:start], "big")
        texts.append(stored[start:place].decode())
    status, address, error, code = texts
    return address, Ending(status, stored[place:] or None, error if status == "failed" else None, code or None)
