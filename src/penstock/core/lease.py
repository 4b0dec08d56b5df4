"""The stored form of a lease: one number that is never repeated, even after an older copy of a store is restored.

`lease = number * 2**28 + call`. `number` is public and grows by one with each hand-out of the task. `call` is a random
number of 28 bits per take, so a lease cannot be guessed from its number. Leases stay below 2**53, where a double
is exact.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.core.names import shown
from penstock.errors import NotTaken

CALL_BITS = 28
CALL_MASK = (1 << CALL_BITS) - 1
#: The number stops growing here.
MAX_NUMBER = 2**25 - 1


def number_of(lease: int) -> int:
    """The public number of a lease."""
    return lease >> CALL_BITS


def call_of(lease: int) -> int:
    """The random number of the take that made the lease."""
    return lease & CALL_MASK


def next_lease(lease: int, call: int) -> int:
    """The lease of the next hand-out."""
    return min(number_of(lease) + 1, MAX_NUMBER) << CALL_BITS | call


# A lease as text, for callers that hold no Task: HTTP clients and shells.

_TEXT = re.compile(r"[1-9a-f][0-9a-f]{0,13}")
_MAX_LEASE = 2**53


class HandOut(NamedTuple):
    """A task's id and the stored lease of one hand-out; verbs accept it instead of a Task."""

    id: int
    lease: int


def hand_out(id: int, text: str) -> HandOut:
    """The hand-out with that lease text. Raises NotTaken if no take could have made that text."""
    lease = int(text, 16) if _TEXT.fullmatch(text) else _MAX_LEASE
    if lease >= _MAX_LEASE:
        raise NotTaken(f"task {id} is not held with lease {shown(text)}: give the lease that the take returned")
    return HandOut(id, lease)
