"""The micro-queues of one tube: who of the ready stands at the head, and whose turn it is."""

from __future__ import annotations

import heapq

from msgspec.structs import replace

from penstock.core.lane import LaneState, next_turn
from penstock.core.options import Tube
from penstock.core.task import QUEUED, Record
from penstock.store.memory.heap import Key, LazyHeap
from penstock.store.memory.step import Step


class MicroQueue:
    """One micro-queue. `heads` holds negated keys, so that the least urgent head comes first."""

    __slots__ = ("heads", "numbers", "waiting")

    def __init__(self, waiting: LazyHeap[Key], heads: LazyHeap[Key]) -> None:
        self.numbers = LaneState()
        self.waiting = waiting
        self.heads = heads


class Lanes:
    """Decides between r and q, and promotes and demotes the others; shares records and ready index with the tube."""

    __slots__ = ("_idle", "_ready", "_records", "by_name", "fair", "limit", "no")

    def __init__(self, tube: Tube, records: dict[int, Record], ready: LazyHeap[Key]) -> None:
        self.no = tube.no
        self.limit = tube.utube_limit
        self.fair = tube.fair
        self.by_name: dict[str, MicroQueue] = {}
        self._records = records
        self._ready = ready
        self._idle: list[tuple[int, str]] = []

    def key(self, record: Record) -> Key:
        """Its place inside its micro-queue. In a fair tube rank2 is the turn, which only orders the queues."""
        return (record.rank1, 0 if self.fair else record.rank2, record.id)

    def moved(self, old: Record | None, new: Record, step: Step) -> Record:
        """Keep the numbers of the task's micro-queue, and answer the record with its final state and rank."""
        if self.fair and new.rank2:
            new = replace(new, rank2=0)
        name = new.utube or ""
        lane = self.by_name.get(name)
        if lane is None:
            if new.state != "r":
                return new  # buried or delayed, before and after: in no micro-queue
            lane = self.by_name[name] = self._begin()
        was_empty = lane.numbers.empty  # before it left its place: a release into an otherwise empty one is no new turn
        self._leave(lane, old)
        if new.state == "r":
            new = self._arrive(lane, new, was_empty, step)
        elif new.state == "t":
            lane.numbers.taken += 1
            if old is not None and old.state == "r":
                self._served(lane, step.now)
        else:
            self._fill(lane, step)
        if lane.numbers.empty:
            self._rest(name, lane, step.now)
        return new

    def restore(self, record: Record, turn: int) -> None:
        """Count a stored record again, for repair: every ready one waits until `settle_all`."""
        lane = self.by_name.get(record.utube or "")
        if lane is None:
            lane = self.by_name[record.utube or ""] = self._begin()
        lane.numbers.turn = max(lane.numbers.turn, turn)
        if record.state == "t":
            lane.numbers.taken += 1
        else:
            self._records[record.id] = self._wait(lane, record)

    def settle_all(self, step: Step) -> None:
        """After `restore` of every record: make heads of the first ones."""
        for lane in self.by_name.values():
            self._fill(lane, step)

    def _begin(self) -> MicroQueue:
        return MicroQueue(LazyHeap(self._waits), LazyHeap(self._heads))

    def _waits(self, key: Key) -> bool:
        record = self._records.get(key[2])
        return record is not None and record.state == QUEUED and self.key(record) == key

    def _heads(self, negated: Key) -> bool:
        key = _negated(negated)
        record = self._records.get(key[2])
        return record is not None and record.state == "r" and self.key(record) == key

    def _leave(self, lane: MicroQueue, old: Record | None) -> None:
        if old is None:
            return
        if old.state == "t":
            lane.numbers.taken -= 1
        elif old.state == "r":
            lane.numbers.heads -= 1
        elif old.state == QUEUED:
            lane.numbers.waiting -= 1

    def _arrive(self, lane: MicroQueue, new: Record, was_empty: bool, step: Step) -> Record:
        if self.fair and was_empty:
            lane.numbers.turn = next_turn(lane.numbers.turn, step.now)
        key = self.key(new)
        if lane.numbers.room(self.limit) > 0:
            first = lane.waiting.first()
            if first is None or key < first:
                return self._head(lane, new)
            self._promote(lane, first, step)
            return self._wait(lane, new)
        worst = lane.heads.first()
        if worst is None or key > _negated(worst):
            return self._wait(lane, new)
        self._demote(lane, self._records[-worst[2]], step)
        return self._head(lane, new)

    def _head(self, lane: MicroQueue, record: Record) -> Record:
        lane.numbers.heads += 1
        lane.heads.push(_negated(self.key(record)), lane.numbers.heads)
        return replace(record, state="r", rank2=lane.numbers.turn if self.fair else record.rank2)

    def _wait(self, lane: MicroQueue, record: Record) -> Record:
        lane.numbers.waiting += 1
        lane.waiting.push(self.key(record), lane.numbers.waiting)
        return replace(record, state=QUEUED, rank2=0 if self.fair else record.rank2)

    def _promote(self, lane: MicroQueue, key: Key, step: Step) -> None:
        lane.waiting.pop()
        lane.numbers.waiting -= 1
        self._stand(self._head(lane, self._records[key[2]]))
        step.ready(self.no, 1)

    def _demote(self, lane: MicroQueue, record: Record, step: Step) -> None:
        lane.heads.pop()
        lane.numbers.heads -= 1
        self._records[record.id] = self._wait(lane, record)
        step.ready(self.no, -1)

    def _fill(self, lane: MicroQueue, step: Step) -> None:
        while lane.numbers.room(self.limit) > 0 and (first := lane.waiting.first()) is not None:
            self._promote(lane, first, step)

    def _served(self, lane: MicroQueue, now: int) -> None:
        """A fair micro-queue goes behind the others, with the heads it has left."""
        if not self.fair:
            return
        lane.numbers.turn = next_turn(lane.numbers.turn, now)
        for negated in lane.heads.live():
            self._stand(replace(self._records[-negated[2]], rank2=lane.numbers.turn))

    def _stand(self, record: Record) -> None:
        self._records[record.id] = record
        self._ready.push((record.rank1, record.rank2, record.id), len(self._records))

    def _rest(self, name: str, lane: MicroQueue, now: int) -> None:
        """Forget the empty micro-queue, once its turn is over: sooner, it could be served twice in a moment."""
        if self.fair and lane.numbers.turn >= now:
            heapq.heappush(self._idle, (lane.numbers.turn, name))
        else:
            del self.by_name[name]
        while self._idle and self._idle[0][0] < now:
            turn, idle = heapq.heappop(self._idle)
            known = self.by_name.get(idle)
            if known is not None and known.numbers.empty and known.numbers.turn == turn:
                del self.by_name[idle]


def _negated(key: Key) -> Key:
    return (-key[0], -key[1], -key[2])
