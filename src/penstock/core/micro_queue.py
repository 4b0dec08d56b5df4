"""Micro-queues: which ready tasks are heads, that is, may be taken.

The first (limit - taken) ready tasks of a micro-queue are its heads; the others wait. So after every step, a
micro-queue has either no room for another head or no waiting task. A store keeps a MicroQueueState per micro-queue.
"""

from __future__ import annotations

import msgspec


class MicroQueueState(msgspec.Struct):
    """The counters of one micro-queue. `turn` orders micro-queues when the tube is fair."""

    taken: int = 0
    heads: int = 0
    waiting: int = 0
    turn: int = 0

    def room(self, limit: int) -> int:
        """How many more heads the micro-queue may have."""
        return limit - self.taken - self.heads

    @property
    def empty(self) -> bool:
        """Whether the micro-queue has no ready and no taken task."""
        return not (self.taken or self.heads or self.waiting)


def next_turn(turn: int, now: int) -> int:
    """The turn of a micro-queue that was served or became non-empty: after all that were served before."""
    return max(now, turn + 1)
