"""The micro-queues of one tube: which of their ready tasks are heads, and whose turn it is."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

from msgspec.structs import replace

from penstock.core.lane import next_turn
from penstock.core.options import Tube
from penstock.core.task import QUEUED, Record
from penstock.store.memory.heap import Key, LazyHeap


class MicroQueue:
    """One micro-queue: how many of its tasks are taken, its heads in order, and those that wait."""

    __slots__ = ("heads", "line", "taken", "turn", "waiting")

    def __init__(self, line: LazyHeap[Key], turn: int) -> None:
        self.taken = self.waiting = 0
        self.heads: list[Key] = []
        self.line = line
        self.turn = turn

    @property
    def empty(self) -> bool:
        """Whether nothing of it is ready or taken."""
        return not (self.taken or self.heads or self.waiting)


class MicroQueues:
    """Decides between r and q, and promotes and demotes the others; shares records and ready index with the tube."""

    def __init__(self, tube: Tube, records: dict[int, Record], ready: LazyHeap[Key]) -> None:
        self._limit = tube.utube_limit
        self._fair = tube.fair
        self._records = records
        self._ready = ready
        self._idle: list[tuple[int, str]] = []
        self.by_name: dict[str, MicroQueue] = {}
        self.gained = 0  # so many more of the other tasks are heads; the tube sets it back

    def begin(self, name: str, turn: int = 0) -> MicroQueue:
        """A new micro-queue."""
        queue = self.by_name[name] = MicroQueue(LazyHeap(self._waits), turn)
        return queue

    def key(self, record: Record) -> Key:
        """Its place inside its micro-queue. In a fair tube rank2 is the turn, which only orders the queues."""
        return (record.rank1, 0 if self._fair else record.rank2, record.id)

    def moved(self, old: Record | None, new: Record | None, name: str, now: int) -> Record | None:
        """A task of this micro-queue comes from one state into another; the record as it is to be stored.

        Until then it is stored as neither ready nor waiting. A head's rank2 in a fair tube is its queue's turn.
        """
        if self._fair and new is not None and new.rank2:
            new = replace(new, rank2=0)
        queue = self.by_name.get(name)
        if queue is None:
            if new is None or new.state not in "rt":
                return new  # buried or delayed, before and after: in no micro-queue
            queue = self.begin(name)
        was_empty = queue.empty  # before it left its place: a release into an otherwise empty one is no new turn
        if old is not None:
            self._leave(queue, old)
        if new is not None and new.state == "r":
            if self._fair and was_empty:
                queue.turn = next_turn(queue.turn, now)
            return self._arrive(queue, new)
        if new is not None and new.state == "t":
            queue.taken += 1
            if self._fair and old is not None and old.state == "r":
                self._served(queue, now)
            return new
        while queue.waiting and self._room(queue) > 0 and (first := queue.line.first()) is not None:
            self._promote(queue, first)
        if queue.empty:
            self._rest(name, queue, now)
        return new

    def sweep(self, now: int) -> None:
        """Forget empty micro-queues whose turn is over."""
        while self._idle and self._idle[0][0] < now:
            turn, name = heapq.heappop(self._idle)
            known = self.by_name.get(name)
            if known is not None and known.empty and known.turn == turn:
                del self.by_name[name]

    def _room(self, queue: MicroQueue) -> int:
        return self._limit - queue.taken - len(queue.heads)

    def _waits(self, key: Key) -> bool:
        record = self._records.get(key[2])
        return record is not None and record.state == QUEUED and self.key(record) == key

    def _leave(self, queue: MicroQueue, old: Record) -> None:
        if old.state == "t":
            queue.taken -= 1
        elif old.state == QUEUED:
            queue.waiting -= 1
        elif old.state == "r":
            key = self.key(old)
            place = bisect_left(queue.heads, key)
            if queue.heads[place : place + 1] == [key]:
                del queue.heads[place]

    def _arrive(self, queue: MicroQueue, new: Record) -> Record:
        key = self.key(new)
        if self._room(queue) > 0:
            first = queue.line.first() if queue.waiting else None
            if first is None or key < first:
                return self._head(queue, new, key)
            self._promote(queue, first)
            return self._wait(queue, new)
        if not queue.heads or key > queue.heads[-1]:
            return self._wait(queue, new)
        worst = self._records[queue.heads.pop()[2]]
        self._records[worst.id] = self._wait(queue, worst)
        self.gained -= 1
        return self._head(queue, new, key)

    def _head(self, queue: MicroQueue, record: Record, key: Key) -> Record:
        insort(queue.heads, key)
        return replace(record, state="r", rank2=queue.turn if self._fair else record.rank2)

    def _wait(self, queue: MicroQueue, record: Record) -> Record:
        queue.waiting += 1
        queue.line.push(self.key(record), queue.waiting)
        return replace(record, state=QUEUED, rank2=0 if self._fair else record.rank2)

    def _promote(self, queue: MicroQueue, key: Key) -> None:
        queue.line.pop()
        queue.waiting -= 1
        self.gained += 1
        self._place(self._head(queue, self._records[key[2]], key))

    def _served(self, queue: MicroQueue, now: int) -> None:
        """A fair micro-queue goes behind the others, with the heads it has left."""
        queue.turn = next_turn(queue.turn, now)
        for key in queue.heads:
            self._place(replace(self._records[key[2]], rank2=queue.turn))

    def _place(self, record: Record) -> None:
        self._records[record.id] = record
        self._ready.push((record.rank1, record.rank2, record.id), len(self._records))

    def _rest(self, name: str, queue: MicroQueue, now: int) -> None:
        """Forget the empty micro-queue, once its turn is over: sooner, it could be served twice in a moment."""
        if self._fair and queue.turn >= now:
            heapq.heappush(self._idle, (queue.turn, name))
        else:
            del self.by_name[name]
        self.sweep(now)
