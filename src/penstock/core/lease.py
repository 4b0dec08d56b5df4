"""A lease as stores keep it: one number that no two hand-outs share, even after an older copy of a store is restored.

`lease = number * 2**28 + call`. `number` grows by one with each hand-out of the task: people see it. `call` is drawn by
the client for each take (1 .. 2**28 - 1): whoever knows the number alone cannot settle the task. Below 2**53, so that a
double is exact.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.names import shown
from penstock.errors import NotTaken

if TYPE_CHECKING:
    from penstock.core.task import Facts

CALL_BITS = 28
CALL_MASK = (1 << CALL_BITS) - 1
#: A task that was handed out more often keeps this number.
MAX_NUMBER = 2**25 - 1


def number_of(lease: int) -> int:
    """Which hand-out of its task a lease is."""
    return lease >> CALL_BITS


def call_of(lease: int) -> int:
    """The take that made a lease."""
    return lease & CALL_MASK


def next_lease(lease: int, call: int) -> int:
    """The lease of the next hand-out."""
    return min(number_of(lease) + 1, MAX_NUMBER) << CALL_BITS | call


# A hand-out as text, for callers in other processes that hold no Task: HTTP clients and shells.

_TEXT = re.compile(r"[1-9a-f][0-9a-f]{0,13}")
_MAX_LEASE = 2**53


class HandOut(NamedTuple):
    """A task's id and the stored lease of one hand-out; verbs accept it in place of a Task."""

    id: int
    lease: int


def lease_text(task: Facts[Any]) -> str:
    """The lease of a taken task as an opaque text, its unrepeatable part included."""
    return f"{task._record.lease:x}"


def hand_out(id: int, text: str) -> HandOut:
    """The hand-out of that text; NotTaken if no take gave such a text."""
    lease = int(text, 16) if _TEXT.fullmatch(text) else _MAX_LEASE
    if lease >= _MAX_LEASE:
        raise NotTaken(f"task {id} is not held with lease {shown(text)}: give the lease as the take gave it")
    return HandOut(id, lease)
