"""One tube in memory: its tasks, their indexes and counters. Knows nothing of locks, handles or other tubes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from penstock.core import handout, lifecycle
from penstock.core.address import replaced
from penstock.core.kind import CLOCK, DELIVER, LEASE
from penstock.core.lifecycle import Change, Move
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Entry, Record
from penstock.store.base import ADVANCE_STEP, STATE_COUNTER, Counts, altered
from penstock.store.memory.following import follow
from penstock.store.memory.heap import Key, LazyHeap
from penstock.store.memory.lanes import Lanes
from penstock.store.memory.links import Links
from penstock.store.memory.naming import Naming
from penstock.store.memory.records import expired, made, place
from penstock.store.memory.step import Step
from penstock.store.refusals import tube_full

# session number -> (tube number, task id) of what it holds
Held = dict[int, set[tuple[int, int]]]


class TubeState:
    """A tube's content. Every change of a task goes through `_move`, which keeps all indexes and counters."""

    def __init__(self, tube: Tube, held: Held) -> None:
        self.tube = tube
        self.paused = False
        self.last_id = 0
        self.records: dict[int, Record] = {}  # in id order: ids grow, and a record is replaced where it stands
        self.counts = dict.fromkeys(Counts.__struct_fields__, 0)
        self.apart: dict[str, set[int]] = {"t": set(), "~": set(), "!": set(), UNSTARTED: set()}
        self.aside: list[Key] = []
        self._aside_until = 0
        self._held = held
        self.links = Links(tube, self.records)
        self.naming = Naming(tube, self.links)
        self.index_anew()

    def index_anew(self) -> None:
        """Empty indexes, for a new tube and for repair."""
        self.ready: LazyHeap[Key] = LazyHeap(lambda key: self._stands(key, "r"))
        self.buried: LazyHeap[Key] = LazyHeap(lambda key: self._stands(key, "!"))
        self.delivered: LazyHeap[Key] = LazyHeap(lambda key: self._stands(key, "t"))
        self.timer: LazyHeap[tuple[int, int]] = LazyHeap(self._awaits)
        self.lanes = Lanes(self.tube, self.records, self.ready) if self.tube.kind.per_utube else None
        self.links.groups.index_anew()
        self.aside.clear()

    # changes

    def put(self, entries: Sequence[Entry], step: Step) -> list[Record]:
        """Store all entries; the records are as they are after the last one."""
        first = self.last_id + 1
        if self.tube.kind.hand_out != LEASE:
            entries = self.naming.named(entries, first, step.now)
        for entry in entries:
            self.last_id += 1
            self._store(entry, step)
        self.counts["put"] += len(entries)
        records = [self.records[id] for id in range(first, self.last_id + 1)]
        for record in records:
            step.tell(self.tube.no, "put", record)
        return records

    def _store(self, entry: Entry, step: Step) -> None:
        group = self.links.groups.of(entry)
        record = made(entry, self.last_id, step.now, group)
        if group is not None or entry.address is not None:
            self.links.arrived(record, step.now)
        self._move(None, record, step)

    def adopt(self, record: Record, step: Step) -> None:
        """Store a task that comes from elsewhere under its id, which is above the last one."""
        self.skip_to(record.id - 1)
        self.last_id = record.id
        self.counts["put"] += 1
        if record.group_no is not None or record.address is not None:
            self.links.arrived(record, step.now)
        self._move(None, record, step)

    def skip_to(self, id: int) -> None:
        """The ids up to here were put and are done, elsewhere."""
        skipped = max(0, id - self.last_id)
        self.last_id += skipped
        self.counts["put"] += skipped
        self.counts["done"] += skipped

    def rename(self, tube: Tube) -> None:
        """The same tube under another name."""
        self.tube = self.links.tube = self.naming.tube = tube

    def put_planned(self, entries: Sequence[Entry], step: Step) -> list[Record]:
        """Store entries with addresses or groups; raises before anything has changed."""
        held = self.links.held(entries)
        lapsed = [record for record in held if self._is_lapsed(record, step.now)]
        there = [record for record in held if not self._is_lapsed(record, step.now)]
        plan = self.links.plan(entries, there, step.now)
        self.links.groups.must_outlast(lapsed, plan.fresh)
        if plan.fresh:
            self.must_hold(len(plan.fresh) - len(lapsed))
        for record in lapsed:
            self.lapsed(record, step)
        fresh = self.put(plan.fresh, step)
        for id, entry in plan.replaced.items():
            self._replace(id, entry, step)
        return [fresh[place] if place >= 0 else self.records[-place] for place in plan.places]

    def must_hold(self, more: int) -> None:
        """TubeFull where there is no room for so many more."""
        if self.tube.capacity is not None and len(self.records) + more > self.tube.capacity:
            raise tube_full(self.tube, len(self.records), more)

    def _replace(self, id: int, entry: Entry, step: Step) -> Record:
        old = self.records[id]
        new = replaced(old, entry, step.now)
        self.records[id] = replace(new, state="~")  # in no micro-queue while its place in there is found
        if old.state == "r":
            step.ready(self.tube.no, -1)
        new = self._move(old, new, step)
        step.tell(self.tube.no, "put", new)
        return new

    def lease(self, count: int, session: int, max_pri: int | None, step: Step) -> list[Record]:
        """Hand out up to count tasks, in order."""
        self._call_back_aside(step.now)
        top = handout.clock_limit(self.tube, step.now) if self.tube.kind.hand_out == CLOCK else max_pri
        leased: list[Record] = []
        while len(leased) < count and (first := self.ready.first()) is not None:
            if top is not None and first[0] > top:
                break
            self.ready.pop()
            record = self.records[first[2]]
            if self.links.groups.cancelled(record):
                continue  # it will be removed, and is never ready again
            if expired(record, step.now):
                self._set_aside(record)
            else:
                leased.append(self._hand_out(record, session, step))
        return leased

    def advance(self, limit: int | None, step: Step) -> bool:
        """Do what is due, at most limit tasks, and say whether more is."""
        done = 0
        while (first := self.timer.first()) is not None and first[0] <= step.now:
            if done == limit:
                return True
            done += 1
            self.timer.pop()
            record = self.records[first[1]]
            self.apply(record, lifecycle.became_due(record, step.now), step)
        if self._aside_until <= step.now:
            self.aside.clear()  # whatever stood there has just gone
        self.links.sweep(step.now, ADVANCE_STEP)
        return follow(self, None if limit is None else limit - done, step)

    def lapsed(self, record: Record, step: Step) -> bool:
        """Whether the task is gone by its ttl or with its group; then it is removed."""
        if not self._is_lapsed(record, step.now):
            return False
        cancelled = self.links.groups.cancelled(record)
        change = lifecycle.removed(record, "delete") if cancelled else lifecycle.became_due(record, step.now)
        self.apply(record, change, step)
        return True

    def _is_lapsed(self, record: Record, now: int) -> bool:
        return self.links.groups.cancelled(record) or expired(record, now)

    def settle(self, move: Move, step: Step) -> Record | None:
        """Apply the move if its guard holds."""
        record = self.records.get(move.id) if move.name is None else self.links.of(move.name)
        if record is None or self.lapsed(record, step):
            return None
        change = lifecycle.decide(record, move, step.now)
        return None if change is None else self.apply(record, change, step)

    def kick(self, count: int, step: Step) -> list[Record]:
        """Un-bury up to count tasks, in order."""
        kicked: list[Record] = []
        while len(kicked) < count and (first := self.buried.first()) is not None:
            self.buried.pop()
            record = self.records[first[2]]
            kicked.append(self.apply(record, lifecycle.kicked(record), step))
        return kicked

    def release(self, ids: Iterable[int], step: Step) -> list[Record]:
        """Take back the leases of these tasks."""
        taken = [self.records[id] for id in ids]
        return [self.apply(record, lifecycle.came_back(record, step.now, "release"), step) for record in taken]

    def delete(self, ids: Iterable[int], step: Step) -> list[Record]:
        """Remove those of these tasks that are there; what expired goes by its ttl, and is not among the answer."""
        there = (self.records.get(id) for id in ids)
        live = (record for record in there if record is not None and not self.lapsed(record, step))
        return [self.apply(record, lifecycle.removed(record, "delete"), step) for record in live]

    def apply(self, record: Record, change: Change, step: Step) -> Record:
        """Make the change, count and tell it; the record is as it is afterwards."""
        if record.group_no is not None:
            change = self.links.gate(record, change)
        new = self._move(record, altered(record, change, change.state), step)
        for event in change.events:
            self.counts[event] += 1
            step.tell(self.tube.no, event, new)
        if new.state == "-" and (change.ending is not None or record.group_no is not None):
            self.links.left(record, change.ending, step)
        return new

    # looking

    def next_at(self) -> int | None:
        """The next moment the clock does something here; the earliest there is while tasks must follow a group."""
        if self.links.groups.moving:
            return 0
        first = self.timer.first()
        return None if first is None else first[0]

    def clock_wait(self, now: int) -> int | None:
        """So long until the first element of a round tube may be handed out; None: now, or there is none."""
        first = self.ready.first() if self.tube.kind.hand_out == CLOCK else None
        return None if first is None else handout.clock_wait(self.tube, first[0], now)

    # inside

    def index(self, record: Record) -> None:
        """Enter a record into the indexes of its state; the outdated entries of its past drop out by themselves."""
        if record.state == "r":
            self.ready.push(place(record), len(self.records))
        elif record.state == "!":
            self.buried.push(place(record), len(self.records))
        elif record.state == UNSTARTED:
            self.links.groups.index(record)
        elif self.tube.kind.hand_out == DELIVER:
            self.delivered.push(place(record), len(self.records))
        if record.at is not None:
            self.timer.push((record.at, record.id), len(self.records))

    def _move(self, old: Record | None, new: Record, step: Step) -> Record:
        """Bring a task from one state to another, with everything that hangs on it."""
        id, no = new.id, self.tube.no
        if new.state == "-":
            del self.records[id]
        elif new.state != "r":
            self.records[id] = new  # before the lanes look, so that they do not promote what is leaving
        if self.lanes is not None:
            new = self.lanes.moved(old, new, step)
        if new.state == "-":
            step.gone(no)
        else:
            self.records[id] = new
            self.index(new)
        if old is not None:
            self._leave(old)
        self._enter(new)
        if new.state == "r":
            step.ready(no, 1)
        return new

    def _leave(self, old: Record) -> None:
        self.counts[STATE_COUNTER[old.state]] -= 1
        if old.state in self.apart:
            self.apart[old.state].discard(old.id)
        if old.state == "t" and old.owner in self._held:
            self._held[old.owner].discard((self.tube.no, old.id))

    def _enter(self, new: Record) -> None:
        self.counts[STATE_COUNTER[new.state]] += 1
        if new.state in self.apart:
            self.apart[new.state].add(new.id)
        if new.state == "t" and new.owner in self._held:
            self._held[new.owner].add((self.tube.no, new.id))

    def _hand_out(self, record: Record, session: int, step: Step) -> Record:
        if self.tube.kind.hand_out == CLOCK:
            step.ready(self.tube.no, -1)  # it only moved
            return self._handed(record, handout.clocked(record, step.now), step)
        if self.tube.kind.hand_out == DELIVER:
            return self.deliver(record, step)
        at = None if record.ttr is None else step.now + record.ttr
        taken = replace(
            record,
            state="t",
            attempts=record.attempts + 1,
            lease=record.lease + 1,
            taken=step.now,
            owner=session,
            at=at,
            progress=None,
        )
        return self._handed(record, taken, step)

    def deliver(self, record: Record, step: Step) -> Record:
        """Hand out a message of a reliable tube, for the first time or again."""
        return self._handed(record, handout.delivered(record, step.now, self.counts["take"] + 1), step)

    def _handed(self, record: Record, taken: Record, step: Step) -> Record:
        taken = self._move(record, taken, step)
        self.counts["take"] += 1
        step.tell(self.tube.no, "take", taken)
        return taken

    def _set_aside(self, record: Record) -> None:
        """Keep an expired task that advance has not reached out of the way of later takes."""
        self.aside.append(place(record))
        self._aside_until = max(self._aside_until, record.expires or 0)

    def _call_back_aside(self, now: int) -> None:
        """When the clock was set back, what had expired may live again."""
        if self.aside and self._aside_until > now:
            for key in self.aside:
                self.ready.push(key, len(self.records))
            self.aside.clear()
            self._aside_until = 0

    def _stands(self, key: Key, state: str) -> bool:
        record = self.records.get(key[2])
        return record is not None and record.state == state and record.rank1 == key[0] and record.rank2 == key[1]

    def _awaits(self, entry: tuple[int, int]) -> bool:
        record = self.records.get(entry[1])
        return record is not None and record.at == entry[0]
