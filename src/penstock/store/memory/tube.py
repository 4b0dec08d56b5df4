"""One tube in memory: its tasks with their indexes and counters, its groups and its outcomes. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.ending import SUPERSEDED_MS, Ending
from penstock.core.entry import new_record
from penstock.core.group import Group
from penstock.core.handout import clock_limit, clock_wait, clocked, delivered
from penstock.core.ids import Mark, next_marks, shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.lifecycle import Move, expired, handed_out
from penstock.core.options import Tube
from penstock.core.refusals import tube_full
from penstock.core.results import STATE_COUNTER, Counts
from penstock.core.soundness import needed_mark
from penstock.core.task import QUEUED, UNSTARTED, Entry, Record
from penstock.core.transfer import Kept, Parcel, Tally
from penstock.engine import port
from penstock.store.memory.heap import Key, LazyHeap
from penstock.store.memory.queues import MicroQueues

# session number -> (tube number, task id) of what it holds
Held = dict[int, set[tuple[int, int]]]


class TubeState:
    """A tube's content. Every change of a task goes through `move`, which keeps all indexes and counters."""

    def __init__(self, tube: Tube, held: Held) -> None:
        self.tube = tube
        self.paused = False
        self.last_id = 0
        self.mark: Mark = (0, 0)  # of the newest message
        self.counts = dict.fromkeys(Counts.__struct_fields__, 0)
        self.records: dict[int, Record] = {}  # in id order: ids grow, and a record is replaced where it is
        self.groups: dict[int, Group] = {}
        self.live: dict[str, int] = {}  # groups by name
        self.moving: set[int] = set()  # groups whose tasks must follow them
        self.outcomes = Outcomes()
        self._held = held
        self._gained = 0
        self._last_group = 0
        self._over: dict[int, None] = {}  # groups, in the order of their ends
        self._index()

    def _index(self) -> None:
        """Empty indexes."""
        self.by_state: dict[str, set[int]] = {"t": set(), "~": set(), "!": set(), UNSTARTED: set()}
        self.by_address: dict[str, int] = {}
        self.members: dict[int, dict[int, None]] = {}  # tasks of a group, in id order
        self.unstarted: dict[int, LazyHeap[Key]] = {}
        self.timer: LazyHeap[tuple[int, int]] = LazyHeap(self._awaits)
        self.ready = self._heap("r")
        self.buried = self._heap("!")
        self.delivered = self._heap("t")
        self._aside: list[Key] = []  # ready ones past their ttl, that takes have met
        self._aside_until = 0
        self.queues = MicroQueues(self.tube, self.records, self.ready) if self.tube.kind.per_utube else None

    def _heap(self, state: str) -> LazyHeap[Key]:
        """The tasks in a state, in take order."""
        records = self.records

        def is_there(key: Key) -> bool:
            record = records.get(key[2])
            return record is not None and record.state == state and record.rank1 == key[0] and record.rank2 == key[1]

        return LazyHeap(is_there)

    # tasks

    def must_hold(self, more: int) -> None:
        """TubeFull where there is no room for so many more."""
        if self.tube.capacity is not None and more > 0 and len(self.records) + more > self.tube.capacity:
            raise tube_full(self.tube, len(self.records), more)

    def insert(self, entries: Sequence[Entry], now: int) -> list[Record]:
        """Store new tasks; the records are as they are after the last one."""
        first = self.last_id + 1
        if not self.tube.kind.leased:
            entries = self._named(entries, first, now)
        for entry in entries:
            self.last_id += 1
            if entry.address is not None:
                self.outcomes.supersede(entry.address, now + SUPERSEDED_MS)
            self._arrive(new_record(entry, self.last_id, now), now)
        self.counts["put"] += len(entries)
        return [self.records[id] for id in range(first, self.last_id + 1)]

    def _named(self, entries: Sequence[Entry], first: int, now: int) -> list[Entry]:
        """Entries of an unleased kind with their ids; of elements, a reply alone comes without one."""
        if self.tube.kind.hand_out == CLOCK:
            return [entry if entry.address else self._reply(entry, id) for id, entry in enumerate(entries, first)]
        marks = next_marks(self.mark, now, len(entries))
        self.mark = marks[-1] if marks else self.mark
        return [replace(entry, address=shown_mark(mark)) for entry, mark in zip(entries, marks, strict=True)]

    def _reply(self, entry: Entry, id: int) -> Entry:
        name = f"reply-{id}"
        while name in self.by_address:
            name += "-"
        return replace(entry, address=name)

    def _arrive(self, record: Record, now: int) -> None:
        if record.address is not None:
            self.by_address[record.address] = record.id
        if record.group_no is not None:
            self.members.setdefault(record.group_no, {})[record.id] = None
        self.move(None, record, now)

    def write(self, row: port.Row, now: int) -> None:
        """Bring one task from its state before to that after, and count it."""
        old, new = self.records[row.before.id], row.after  # it may have become a head since it was loaded
        for event in row.events:
            if event != "put":  # new content for a task that is there is not one task more
                self.counts[event] += 1
        if new.state != "-":
            self.move(old, new, now)
            return
        self.move(old, None, now)
        if row.ending is not None and self.tube.kind.leased:
            self._keep(old, row.ending, now)

    def _keep(self, record: Record, ending: Ending, now: int) -> None:
        if record.address is not None:
            self.outcomes.keep(Kept(record.id, record.address, ending, now + self.tube.retention))
            self.outcomes.sweep(now, 2)

    def move(self, old: Record | None, new: Record | None, now: int) -> Record | None:
        """Bring a task from one state to another, None where it is gone; the record as it is then."""
        was = "" if old is None else old.state
        if new is None:
            assert old is not None
            del self.records[old.id]
            if old.address is not None:
                self.by_address.pop(old.address, None)
            if old.group_no is not None:
                self.members[old.group_no].pop(old.id, None)
        if self.queues is not None:
            if new is not None and new.state != "r":
                self.records[new.id] = new
            elif new is not None and was in ("r", QUEUED):  # in no micro-queue while its place in there is found
                self.records[new.id] = replace(new, state="~")
            new = self.queues.moved(old, new, (new or old).utube or "", now)  # type: ignore[union-attr]
        if old is not None:
            self.counts[STATE_COUNTER[was]] -= 1
            if was in self.by_state:
                self.by_state[was].discard(old.id)
                if was == "t" and old.owner in self._held:
                    self._held[old.owner].discard((self.tube.no, old.id))
        if new is None:
            self.counts["done"] += 1
            return None
        self.records[new.id] = new
        self._enter(new)
        if new.state == "r" and was != "r":
            self._gained += 1
        return new

    def _enter(self, record: Record) -> None:
        """Count a task, and enter it into the indexes of its state; what they have of its past drops out later."""
        state, id, total = record.state, record.id, len(self.records)
        self.counts[STATE_COUNTER[state]] += 1
        if state == "r":
            self.ready.push((record.rank1, record.rank2, id), total)
        elif state in self.by_state:
            self.by_state[state].add(id)
            if state == "t":
                if record.owner in self._held:
                    self._held[record.owner].add((self.tube.no, id))
                elif self.tube.kind.hand_out == DELIVER:
                    self.delivered.push((record.rank1, record.rank2, id), total)
            elif state == "!":
                self.buried.push((record.rank1, record.rank2, id), total)
            elif state == UNSTARTED and record.group_no is not None:
                waiting = self.unstarted.get(record.group_no)
                if waiting is None:
                    waiting = self.unstarted[record.group_no] = self._heap(UNSTARTED)
                waiting.push((record.rank1, record.rank2, id), len(self.members[record.group_no]) + 1)
        if record.at is not None:
            self.timer.push((record.at, id), total)

    def gained(self) -> int:
        """How many tasks became takeable since this was asked last."""
        gained, self._gained = self._gained, 0
        if self.queues is not None:
            gained += self.queues.gained
            self.queues.gained = 0
        return gained

    def erase(self, upto: int) -> None:
        """Remove all tasks up to an id, uncounted."""
        for id in list(self.above(0, upto)):
            record = self.records.pop(id)
            if record.address is not None:
                self.by_address.pop(record.address, None)

    # hand-outs

    def lease(self, count: int, session: int, max_pri: int | None, now: int, *, forced: bool) -> list[Record]:
        """Hand out up to count tasks, in order."""
        if self._aside and (not forced or self._aside_until > now):  # gone by now, or the clock was set back
            for key in self._aside:
                self.ready.push(key, len(self.records))
            self._aside, self._aside_until = [], 0
        ready, records, hand_out = self.ready, self.records, self.tube.kind.hand_out
        top = clock_limit(self.tube, now) if hand_out == CLOCK else max_pri
        handed: list[Record] = []
        while len(handed) < count and (first := ready.first()) is not None:
            if top is not None and first[0] > top:
                break
            ready.pop()
            record = records[first[2]]
            if expired(record, now):
                self._aside.append(first)
                self._aside_until = max(self._aside_until, record.expires or 0)
            elif record.group_no is None or self.groups[record.group_no].state != rules.CANCELLING:
                handed.append(self._hand_out(record, session, now))
        return handed

    def recover(self, count: int, elapsed: int, now: int) -> list[Record]:
        """Hand out again the first delivered messages, up to one that is younger."""
        keys = [] if self.paused else self.delivered.head(count)
        old: list[Record] = []
        for record in (self.records[key[2]] for key in keys):
            if (record.taken or 0) + elapsed > now:
                break
            old.append(record)
        return [self._hand_out(record, 0, now) for record in old]

    def _hand_out(self, record: Record, session: int, now: int) -> Record:
        self.counts["take"] += 1
        if self.tube.kind.leased:
            new = handed_out(record, session, now)
        elif self.tube.kind.hand_out == CLOCK:
            new = clocked(record, now)
        else:
            new = delivered(record, now, self.counts["take"])
        return self.move(record, new, now) or new

    def ack(self, moves: Iterable[Move], now: int) -> port.Acked:
        """Remove those that are held as the moves say, have no reply to leave, and are not the last of their group."""
        acked, kept = set(), []
        for move in moves:
            record = self.records.get(move.id) if move.name is None else self.named(move.name)
            if (
                record is not None and record.state == "t" and record.owner == move.session
                and (move.lease is None or record.lease == move.lease) and (record.at is None or record.at > now)
                and record.reply_to is None and (record.group_no is None or self._count_down(record.group_no))
            ):  # fmt: skip
                self.move(record, None, now)
                acked.add(move.shown)
                if record.address is not None and move.name is None:
                    self._keep(record, Ending("done", move.result), now)
                    kept.append(record.id)
        self.counts["ack"] += len(acked)
        return port.Acked(acked, self.gained(), kept)  # type: ignore[arg-type]

    def _count_down(self, no: int) -> bool:
        """One task less of a group; False where that is for the engine to do."""
        group = self.groups[no]
        if group.state != rules.STARTED or group.left <= 1:
            return False
        group.left -= 1
        return True

    def is_due(self, now: int) -> bool:
        """Whether the clock or a group demands something of a task."""
        return bool(self.moving) or ((first := self.timer.first()) is not None and first[0] <= now)

    def next_at(self, now: int) -> int | None:
        """The next moment at which something becomes due, or an element may be handed out."""
        if self.moving:
            return 0
        first = self.timer.first()
        moment = None if first is None else first[0]
        if self.tube.kind.hand_out == CLOCK and (element := self.ready.first()) is not None:
            wait = clock_wait(self.tube, element[0], now)
            if wait is not None and (moment is None or now + wait < moment):
                return now + wait
        return moment

    # looking

    def named(self, name: str) -> Record | None:
        """The task of an address."""
        id = self.by_address.get(name)
        return None if id is None else self.records[id]

    def above(self, after: int, upto: int | None = None) -> Iterable[int]:
        """The ids of tasks above one, in order."""
        last = self.last_id if upto is None else min(upto, self.last_id)
        if last - after <= 2 * len(self.records):
            return (id for id in range(after + 1, last + 1) if id in self.records)
        return (id for id in self.records if after < id <= last)

    def tally(self) -> Tally:
        """The last ids and the counters."""
        return Tally(self.last_id, self.mark, Counts(**self.counts))

    # groups and outcomes

    def open_group(self, name: str, now: int) -> Group:
        """The live group of that name, or a new one."""
        no = self.live.get(name)
        if no is None:
            self.sweep(now, 2)
            self._last_group = no = self.live[name] = self._last_group + 1
            self.groups[no] = Group(no, name)
        return self.groups[no]

    def write_group(self, group: Group) -> None:
        """Set a group's record."""
        self.groups[group.no] = group
        if group.state in rules.LIVE:
            self.live.setdefault(group.name, group.no)
        elif self.live.get(group.name) == group.no:
            del self.live[group.name]
        (self.moving.add if group.moving else self.moving.discard)(group.no)
        if group.state in rules.OVER:
            self._over.setdefault(group.no)
        else:
            self._over.pop(group.no, None)

    def sweep(self, now: int, limit: int) -> None:
        """Forget some outcomes and groups past their retention, and micro-queues that had their turn.

        Whatever adds one forgets two, so that they do not pile up where nobody calls `advance`.
        """
        self.outcomes.sweep(now, limit)
        for no in list(islice(self._over, limit)):
            if not rules.forgotten(self.groups[no], now):
                break
            for kept in (self._over, self.groups, self.members, self.unstarted):
                kept.pop(no, None)
        if self.queues is not None:
            self.queues.sweep(now)

    def _awaits(self, entry: tuple[int, int]) -> bool:
        record = self.records.get(entry[1])
        return record is not None and record.at == entry[0]

    # transfer and repair

    def import_batch(self, parcel: Parcel, now: int) -> None:
        """Store what comes from elsewhere."""
        for kept in parcel.outcomes:
            self.outcomes.keep(kept)
        new = parcel.above(self.last_id)
        for record in new.records:
            self._skip_to(record.id - 1)
            self.last_id = record.id
            self.counts["put"] += 1
            if record.group_no is not None:
                group = self.groups[record.group_no]
                group.total += 1
                group.left += 1
            self._arrive(record, now)
        self._skip_to(parcel.upto)
        self.counts["delay"] -= new.due

    def _skip_to(self, id: int) -> None:
        """The ids up to here were put and are done, elsewhere."""
        skipped = max(0, id - self.last_id)
        self.last_id += skipped
        self.counts["put"] += skipped
        self.counts["done"] += skipped

    def rebuild(self, audit: port.Audit) -> None:
        """Count and index everything again, from the tasks."""
        records = list(self.records.values())
        self.mark = needed_mark(self.mark, audit.newest) or self.mark
        self.counts.update(dict.fromkeys(STATE_COUNTER.values(), 0), done=self.counts["put"] - len(records))
        self.records.clear()
        self._index()
        for name, queue in audit.queues.items() if self.queues is not None else ():
            self.queues.begin(name, queue.turn)  # type: ignore[union-attr]
        for record in records:
            self._arrive(replace(record, state="r") if record.state == QUEUED else record, 0)


class Outcomes:
    """How addressed tasks ended. An address leads to its last outcome; those before it are found by id alone."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}
        self._last: dict[str, int] = {}
        self._ends: LazyHeap[tuple[int, int]] = LazyHeap(self._ends_then)

    def keep(self, kept: Kept) -> None:
        """A task ended so."""
        self._kept[kept.id] = kept
        self._last[kept.address] = kept.id
        self._ends.push((kept.until, kept.id), len(self._kept))

    def supersede(self, address: str, until: int) -> None:
        """The address was put again: its last outcome goes at that moment, if not sooner."""
        id = self._last.get(address)
        if id is not None and self._kept[id].until > until:
            self.keep(replace(self._kept[id], until=until))

    def of(self, id: int | None, address: str | None, now: int) -> Ending | None:
        """How a task ended, or the last one of an address."""
        kept = self._kept.get(self._last.get(address, 0) if id is None and address is not None else id or 0)
        return None if kept is None or kept.until <= now else kept.ending

    def has(self, id: int) -> bool:
        """Whether there is one of a task."""
        return id in self._kept

    def drop(self, id: int) -> None:
        """Forget one."""
        kept = self._kept.pop(id)
        if self._last.get(kept.address) == id:
            del self._last[kept.address]

    def read(self, after: int, limit: int) -> list[Kept]:
        """Those of tasks above an id, in id order."""
        return [self._kept[id] for id in nsmallest(limit, (id for id in self._kept if id > after))]

    def sweep(self, now: int, limit: int) -> None:
        """Forget some whose time is over."""
        for _ in range(limit):
            first = self._ends.first()
            if first is None or first[0] > now:
                return
            self.drop(first[1])

    def _ends_then(self, entry: tuple[int, int]) -> bool:
        kept = self._kept.get(entry[1])
        return kept is not None and kept.until == entry[0]
