"""One tube in memory: its tasks with their indexes and counters, its micro-queues, groups and outcomes.

Every change of a task goes through `move`, which keeps all of these. Nothing is decided here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.ending import SUPERSEDED_MS, Ending, kept_under
from penstock.core.entry import new_record
from penstock.core.group import Group
from penstock.core.ids import Mark, needed_mark, next_marks, shown_mark
from penstock.core.kind import CLOCK
from penstock.core.lane import next_turn
from penstock.core.lifecycle import Move, delivered, dispatched, expired, handed_out, round_limit, round_wait_ms
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER, Counts
from penstock.core.task import NO_UTUBE, QUEUED, Entry, Record
from penstock.core.transfer import Kept, Tally
from penstock.engine import port
from penstock.store.memory.ordered import Key, Ordered


class MicroQueue:
    """How many of its tasks are taken, its heads in order, those that wait, and its turn in a fair tube."""

    __slots__ = ("heads", "taken", "turn", "waiting")

    def __init__(self, turn: int = 0) -> None:
        self.taken, self.turn = 0, turn
        self.heads: list[Key] = []
        self.waiting = Ordered()

    @property
    def empty(self) -> bool:
        """Whether nothing of it is ready or taken."""
        return not (self.taken or self.heads or self.waiting)

    def precedes(self, key: Key) -> bool:
        """Whether one that waits comes before this one."""
        first = self.waiting.first()
        return first is not None and first < key

    def remove(self, key: Key, state: str) -> None:
        """A task leaves the place that it has in this state."""
        if state == "t":
            self.taken -= 1
        elif state == QUEUED:
            self.waiting.discard(key)
        elif state == "r" and key in self.heads:
            self.heads.remove(key)

    @property
    def counted(self) -> tuple[int, int, int]:
        """How many are taken, heads and waiting."""
        return self.taken, len(self.heads), len(self.waiting)


class TubeState:
    """The content of a tube."""

    def __init__(self, tube: Tube) -> None:
        self.tube = tube
        self.paused = False
        self.last_id = 0
        self.mark: Mark = (0, 0)  # of the newest message
        self.counts = dict.fromkeys(Counts.__struct_fields__, 0)
        self.records: dict[int, Record] = {}  # in id order: ids grow, and a record is replaced where it is
        self.gained = 0  # tasks that became takeable; whoever reports them sets it back
        self.groups: dict[int, Group] = {}
        self.live: dict[str, int] = {}  # groups by name
        self.moving: set[int] = set()  # groups whose tasks must follow them
        self.outcomes: dict[int, Kept] = {}
        self.last_outcome: dict[str, int] = {}  # by address; earlier outcomes are found by id alone
        self._outcome_ends = Ordered()  # (until, id)
        self.last_group = 0
        self._over: dict[int, None] = {}  # groups, in the order of their ends
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self.by_state = {state: Ordered() for state in "rt~!g"}  # `_key` has the order of each
        self.by_address: dict[str, int] = {}
        self.members: dict[int, dict[int, None]] = {}  # tasks of a group, in id order
        self.timer = Ordered()  # (at, id)
        self.queues: dict[str, MicroQueue] = {}
        self._idle = Ordered()  # (turn, micro-queue) of empty ones in a fair tube

    def _key(self, record: Record) -> Key:
        """The place of a task in the index of its state."""
        match record.state:
            case "t":
                return (record.owner or 0, record.rank1, record.id)
            case "~":
                return (record.id,)
            case "g":
                return (record.group_no or 0, record.rank1, record.rank2, record.id)
        return (record.rank1, record.rank2, record.id)

    def queue_key(self, record: Record) -> Key:
        """Its place in its micro-queue. In a fair tube rank2 is the turn, which only orders the micro-queues."""
        return (record.rank1, 0 if self.tube.fair else record.rank2, record.id)

    # changes of a task

    def move(self, old: Record | None, new: Record | None, now: int) -> Record | None:
        """Store a task in place of its old state, None if it is new or gone. Returns the record as it is stored."""
        if self.tube.kind.per_utube:
            return self._move_in_queue(old, new, now)
        self._store(old, new)
        return new

    def _store(self, old: Record | None, new: Record | None) -> None:
        counts = self.counts
        if old is not None:
            counts[STATE_COUNTER[old.state]] -= 1
            if old.state != QUEUED:
                self.by_state[old.state].discard(self._key(old))
            if old.at is not None:
                self.timer.discard((old.at, old.id))
            if new is None:
                self._forget(old)
        if new is not None:
            self.records[new.id] = new
            counts[STATE_COUNTER[new.state]] += 1
            if new.state != QUEUED:
                self.by_state[new.state].add(self._key(new))
            if new.at is not None:
                self.timer.add((new.at, new.id))
            if new.state == "r" and (old is None or old.state != "r"):
                self.gained += 1

    def _forget(self, record: Record) -> None:
        del self.records[record.id]
        self.counts["done"] += 1
        if record.address is not None:
            self.by_address.pop(record.address, None)
        if record.group_no is not None:
            self.members[record.group_no].pop(record.id, None)

    def _move_in_queue(self, old: Record | None, new: Record | None, now: int) -> Record | None:
        """The same in a micro-queue: a ready task is one of its heads or waits."""
        fair, label = self.tube.fair, (new or old).utube or NO_UTUBE  # type: ignore[union-attr]
        if fair and new is not None and new.rank2:
            new = replace(new, rank2=0)
        queue = self.queues.get(label)
        if queue is None:
            queue = self.queues[label] = MicroQueue()
        was_empty = queue.empty  # before the task left its place: a release into it begins no new turn
        if old is not None:
            queue.remove(self.queue_key(old), old.state)
        if new is not None and new.state == "r":
            if fair and was_empty:
                queue.turn = next_turn(queue.turn, now)
            new = self._arrive_in_queue(queue, old, new)
        else:
            self._store(old, new)
            if new is not None and new.state == "t":
                queue.taken += 1
                if fair and old is not None and old.state == "r":  # it goes behind the others, with the heads it has
                    queue.turn = next_turn(queue.turn, now)
                    for head in [self.records[key[2]] for key in queue.heads]:
                        self._store(head, replace(head, rank2=queue.turn))
        while queue.waiting and self._room(queue) > 0:
            first = self.records[queue.waiting.pop()[2]]
            self._store(first, self._head(queue, first))
        if queue.empty:
            self._rest(label, queue, now)
        return new

    def _arrive_in_queue(self, queue: MicroQueue, old: Record | None, new: Record) -> Record:
        key, room = self.queue_key(new), self._room(queue)
        if room <= 0 and queue.heads and key < queue.heads[-1]:  # it takes the place of the last head
            last = self.records[queue.heads.pop()[2]]
            self._store(last, self._waiting(queue, last))
            self.gained -= 1
            room = 1
        stored = self._head(queue, new) if room > 0 and not queue.precedes(key) else self._waiting(queue, new)
        self._store(old, stored)
        return stored

    def _room(self, queue: MicroQueue) -> int:
        return self.tube.utube_limit - queue.taken - len(queue.heads)

    def _head(self, queue: MicroQueue, record: Record) -> Record:
        insort(queue.heads, self.queue_key(record))
        return replace(record, state="r", rank2=queue.turn if self.tube.fair else record.rank2)

    def _waiting(self, queue: MicroQueue, record: Record) -> Record:
        queue.waiting.add(self.queue_key(record))
        return replace(record, state=QUEUED, rank2=0 if self.tube.fair else record.rank2)

    def _rest(self, label: str, queue: MicroQueue, now: int) -> None:
        """Forget an empty micro-queue once its turn is over: sooner, it could be served twice in a moment."""
        if self.tube.fair and queue.turn >= now:
            self._idle.add((queue.turn, label))
        else:
            del self.queues[label]
        self._sweep_queues(now)

    def _sweep_queues(self, now: int) -> None:
        while (first := self._idle.first()) is not None and first[0] < now:
            turn, label = self._idle.pop()
            queue = self.queues.get(label)
            if queue is not None and queue.empty and queue.turn == turn:
                del self.queues[label]

    # puts and changes

    def insert(self, entries: Sequence[Entry], now: int) -> list[Record]:
        """Store new tasks. The records are as they are after the last put."""
        first = self.last_id + 1
        if not self.tube.kind.leased:
            entries = self._named(entries, first, now)
        for entry in entries:
            self.last_id += 1
            if entry.address is not None and (last := self.last_outcome.get(entry.address)) is not None:
                kept = self.outcomes[last]
                self.keep(replace(kept, until=min(kept.until, now + SUPERSEDED_MS)))
            self.add(new_record(entry, self.last_id, now), now)
        self.counts["put"] += len(entries)
        records = self.records
        return [records[id] for id in range(first, self.last_id + 1)]

    def _named(self, entries: Sequence[Entry], first: int, now: int) -> list[Entry]:
        """Entries of an unleased kind with their ids. In a round tube, only a reply comes without one."""
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

    def add(self, record: Record, now: int) -> None:
        """Store a new task."""
        if record.address is not None:
            self.by_address[record.address] = record.id
        if record.group_no is not None:
            self.members.setdefault(record.group_no, {})[record.id] = None
        self.move(None, record, now)

    def write(self, row: port.Row, now: int) -> None:
        """Change one task and count it."""
        old = self.records[row.before.id]  # it may have become a head since it was loaded
        for event in row.events:
            if event != "put":  # new content for a task that is there is not one task more
                self.counts[event] += 1
        self.move(old, None if row.after.state == "-" else row.after, now)
        if row.ending is not None and row.after.state == "-" and self.tube.kind.leased:
            self._end(old, row.ending, now)

    def _end(self, record: Record, ending: Ending, now: int) -> None:
        address = kept_under(record.address, ending)
        if address is not None:
            self.keep(Kept(record.id, address, ending, now + self.tube.retention))
            self._sweep_outcomes(now, 2)

    # takes and acks

    def take(self, count: int, session: int, call: int, max_pri: int | None, now: int) -> list[Record]:
        """Hand out up to count tasks, in order."""
        top = round_limit(self.tube, now) if self.tube.kind.hand_out == CLOCK else max_pri
        # Where each hand-out moves its micro-queue behind the others, the next task is only known after it.
        turns, batch = (count, 1) if self.tube.fair and self.tube.utube_limit > 1 else (1, count)
        handed: list[Record] = []
        for _ in range(turns):
            records = self._takeable(batch, top, now)
            if not records:
                break
            handed += [self._hand_out(record, session, call, now) for record in records]
        return handed

    def _takeable(self, count: int, top: int | None, now: int) -> list[Record]:
        found: list[Record] = []
        for key in self.by_state["r"]:
            if top is not None and key[0] > top:
                break
            record = self.records[key[2]]
            cancelled = record.group_no in self.moving and self.groups[record.group_no or 0].state == rules.CANCELLING
            if not (cancelled or expired(record, now)):
                found.append(record)
                if len(found) == count:
                    break
        return found

    def recover(self, count: int, elapsed: int, now: int) -> list[Record]:
        """Hand out again the first delivered messages, up to one that is younger."""
        old: list[Record] = []
        for key in () if self.paused else islice(self.by_state["t"].within(0), count):
            record = self.records[key[-1]]
            if (record.taken or 0) + elapsed > now:
                break
            old.append(record)
        return [self._hand_out(record, 0, 0, now) for record in old]

    def _hand_out(self, record: Record, session: int, call: int, now: int) -> Record:
        self.counts["take"] += 1
        if self.tube.kind.leased:
            new = handed_out(record, session, call, now)
        elif self.tube.kind.hand_out == CLOCK:
            new = dispatched(record, now)
        else:
            new = delivered(record, now, self.counts["take"])
        handed = self.move(record, new, now) or new
        return handed if handed.errors is None else replace(handed, errors=None)

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
                    self._end(record, Ending("done", move.result, errors=record.errors), now)
                    kept.append(record.id)
        self.counts["ack"] += len(acked)
        gained, self.gained = self.gained, 0
        return port.Acked(acked, gained, kept)  # type: ignore[arg-type]

    def _count_down(self, no: int) -> bool:
        """Count one task less in a group; False if the engine must do it."""
        group = self.groups[no]
        if group.state != rules.STARTED or group.left <= 1:
            return False
        group.left -= 1
        return True

    # looking

    def due_at(self) -> int | None:
        """When the clock or a group next demands something of a task."""
        first = self.timer.first()
        return 0 if self.moving else None if first is None else int(first[0])

    def is_due(self, now: int) -> bool:
        """Whether the clock, a group or the retention of outcomes and groups demands something now."""
        kept = self._outcome_ends.first()
        over = self.groups[next(iter(self._over))].until if self._over else None
        moments = (self.due_at(), None if kept is None else int(kept[0]), over)
        return any(moment is not None and moment <= now for moment in moments)

    def next_at(self, now: int) -> int | None:
        """The same, or when the next element may be handed out."""
        moment = self.due_at()
        if self.tube.kind.hand_out == CLOCK and (element := self.by_state["r"].first()) is not None:
            wait = round_wait_ms(self.tube, element[0], now)
            if wait is not None and (moment is None or now + wait < moment):
                return now + wait
        return moment

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

    def keep(self, kept: Kept) -> None:
        """Keep an outcome."""
        self.drop_outcome(kept.id)
        self.outcomes[kept.id] = kept
        self.last_outcome[kept.address] = kept.id
        self._outcome_ends.add((kept.until, kept.id))

    def drop_outcome(self, id: int) -> None:
        """Forget an outcome, if there is one."""
        kept = self.outcomes.pop(id, None)
        if kept is not None:
            self._outcome_ends.discard((kept.until, id))
            if self.last_outcome.get(kept.address) == id:
                del self.last_outcome[kept.address]

    def _sweep_outcomes(self, now: int, limit: int) -> None:
        for until, id in list(islice(self._outcome_ends, limit)):
            if until <= now:
                self.drop_outcome(id)

    def sweep(self, now: int, limit: int) -> None:
        """Forget some outcomes and groups past their retention, and micro-queues whose turn is over.

        Whatever adds one forgets two, so that they do not pile up if nobody calls `advance`.
        """
        self._sweep_outcomes(now, limit)
        for no in list(islice(self._over, limit)):
            if not rules.forgotten(self.groups[no], now):
                break
            for kept in (self._over, self.groups, self.members):
                kept.pop(no, None)
        self._sweep_queues(now)

    # transfer and repair

    def skip_to(self, id: int) -> None:
        """Count the ids up to here as put and done, elsewhere."""
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
        self._clear_indexes()
        self.queues = {label: MicroQueue(queue.turn) for label, queue in audit.queues.items()}
        for record in records:
            self.add(replace(record, state="r") if record.state == QUEUED else record, 0)
