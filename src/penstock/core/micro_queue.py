"""Micro-queues: which ready tasks are heads, that is, may be taken.

The first (limit - taken) ready tasks of a micro-queue are its heads; the others wait. So after every step, a
micro-queue has either no room for another head or no waiting task. A store keeps a MicroQueueState per micro-queue.
"""

from __future__ import annotations

import msgspec

from penstock.core.task import QUEUED, Record


class MicroQueueState(msgspec.Struct):
    """The counters of one micro-queue. `turn` orders micro-queues when the tube is fair."""

    taken: int = 0
    heads: int = 0
    waiting: int = 0
    turn: int = 0

    def add(self, limit: int) -> str:
        """Count a new ready task. Returns its state: a head if the limit allows one and no task waits."""
        state = QUEUED if self.waiting or self.room(limit) <= 0 else "r"
        self._count(state, 1)
        return state

    def move(self, before: str, after: str) -> None:
        """Count a change of state of a stored task. One that becomes ready waits until it is promoted."""
        self._count(before, -1)
        self._count(QUEUED if after == "r" else after, 1)

    def _count(self, state: str, number: int) -> None:
        if state == "t":
            self.taken += number
        elif state == "r":
            self.heads += number
        elif state == QUEUED:
            self.waiting += number

    def promote(self, limit: int) -> int:
        """Count as many waiting tasks as heads as the limit allows. Returns their number."""
        count = max(min(self.room(limit), self.waiting), 0)
        self.heads += count
        self.waiting -= count
        return count

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


def mark_queued(records: list[Record], heads: int) -> list[Record]:
    """Mark all but the first `heads` ready tasks of micro-queues as queued. Only the database knows the real heads."""
    marked = []
    for record in records:
        heads -= record.state == "r"
        marked.append(msgspec.structs.replace(record, state=QUEUED) if record.state == "r" and heads < 0 else record)
    return marked
