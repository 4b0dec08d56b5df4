"""A lease as stores keep it: one number that no two hand-outs share, even after an older copy of a store is restored.

`lease = number * 2**28 + call`. `number` grows by one with each hand-out of the task: people see it. `call` is drawn by
the client for each take (1 .. 2**28 - 1): whoever knows the number alone cannot settle the task. Below 2**53, so that a
double is exact.
"""

from __future__ import annotations

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
