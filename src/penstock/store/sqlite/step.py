"""One transaction's work on one tube: changes applied, lanes kept, counters and effects gathered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from penstock.core.address import replaced
from penstock.core.entry import plain_entry
from penstock.core.group import OPEN
from penstock.core.lifecycle import Change, became_due, removed
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, UNSTARTED, Entry, Record
from penstock.errors import NoSuchTube, StoreFull
from penstock.store.base import STATE_COUNTER, Counts, Effects, Event, altered
from penstock.store.refusals import tube_missing
from penstock.store.sqlite import tubes
from penstock.store.sqlite.keys import ID_BITS as ID_BITS
from penstock.store.sqlite.lanes import Lanes, Q
from penstock.store.sqlite.links import Links
from penstock.store.sqlite.naming import named

# The order of `bump`'s parameters. What is ready and what was put follow from the last id.
_BUMPED = (
    "taken", "delayed", "buried", "done",
    "take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail",
)  # fmt: skip


def read_counts(step: Step) -> Counts:
    """A tube's counters; NoSuchTube when it is gone."""
    return counts_with(step.db, step.tube, step.last_id())


def counts_with(db: apsw.Connection, tube: Tube, last: int) -> Counts:
    """The counters that are stored, and what follows from the last id."""
    taken, delayed, buried, done, *calls = db.execute(Q.counts, (tube.no,)).get
    return Counts(last - taken - delayed - buried - done, taken, delayed, buried, done, last, *calls)


def no_such_tube(db: apsw.Connection, tube: Tube) -> NoSuchTube:
    """The error for a handle whose tube was dropped or moved."""
    tubes.must_not_hide(db, tube.name)
    return tube_missing(tube)


class Step:
    """Everything one call does to one tube, between BEGIN and COMMIT. `finish` writes what was gathered."""

    __slots__ = ("_acks", "_deltas", "_highest", "_lanes", "_links", "db", "effects", "execute", "key", "now", "tube")

    def __init__(self, db: apsw.Connection, tube: Tube, now: int, effects: Effects | None = None) -> None:
        self.db = db
        self.execute = db.execute
        self.tube = tube
        self.now = now
        self.effects = Effects() if effects is None else effects
        self.key = tube.no << ID_BITS
        self._deltas: dict[str, int] = {}
        self._acks = 0  # of tasks that were not read; most steps with any do nothing else
        self._highest = 0  # id removed by this step
        self._lanes = Lanes(db, tube, now) if tube.kind.per_utube else None
        self._links: Links | None = None

    @property
    def links(self) -> Links:
        """What its tasks are tied to, for steps that touch any of it."""
        if self._links is None:
            self._links = Links(self.db, self.tube, self.now, self.effects)
        return self._links

    def record(self, id: int) -> Record | None:
        """The task as it stands; one past its ttl or of a cancelled group is removed first."""
        if not 0 < id < 1 << ID_BITS:
            return None
        return self._live(self.execute(Q.record, (self.key | id,)).get)

    def named(self, name: str) -> Record | None:
        """The same of the task with that id, in a tube of an unleased kind."""
        return self._live(self.execute(Q.by_address, (self.tube.no, name)).get)

    def _live(self, row: Any) -> Record | None:
        if row is None:
            return None
        record = Record(*row)
        if record.state != "t" and record.expires is not None and record.expires <= self.now:
            self.apply(record, became_due(record, self.now))
            return None
        if record.group_no is not None and self.links.cancelled(record):
            self.apply(record, removed(record, "delete"))
            return None
        return record

    def last_id(self) -> int:
        """The last id given in this tube; NoSuchTube when it is gone."""
        row = self.execute(Q.newest, (self.tube.no, self.key + (1 << ID_BITS))).get
        if row is None:
            raise no_such_tube(self.db, self.tube)
        floor, newest = row
        return int(max(floor, (newest or 0) - self.key, self._highest))

    def store(self, entries: Sequence[Entry]) -> list[Record]:
        """Insert new tasks."""
        newest = self.tube.kind.order[0] == "id"
        last = self.last_id()
        if last + len(entries) >= 1 << ID_BITS:
            raise StoreFull(f"tube {self.tube.name} has used up its {1 << ID_BITS} ids: go on in another tube")
        if not self.tube.kind.leased:
            entries = named(self.db, self.tube, entries, last + 1, self.now)
        records, rows, linked_rows = [], [], []
        for id, entry in enumerate(entries, last + 1):
            record = self._arrived(id, entry, newest)
            row = (
                self.key | id, self.tube.no, record.state, record.rank1, record.rank2, record.pri, record.utube,
                record.created, record.expires, record.at, record.ttr, record.max_attempts, record.callback,
                record.payload,
            )  # fmt: skip
            records.append(record)
            if record.address is not None or record.reply_to is not None or record.group_no is not None:
                linked_rows.append((*row, record.address, record.reply_to, record.group, record.group_no))
                self.links.arrived(record)
                if self._lanes is not None:
                    self.execute(Q.insert_linked, linked_rows.pop())
            elif self._lanes is None:
                rows.append(row)
            else:  # at once, because the next arrival may have to demote this one
                self.execute(Q.insert, row)
        if len(rows) == 1:
            self.execute(Q.insert, rows[0])
        elif rows:
            self.db.executemany(Q.insert, rows)
        if linked_rows:
            self.db.executemany(Q.insert_linked, linked_rows)
        return records

    def replace(self, record: Record, entry: Entry) -> Record:
        """Give a ready or delayed task new content."""
        after = replaced(record, entry, self.now)
        ready, laned = after.state == "r", self._lanes is not None and record.state in "rq"
        if self._lanes is not None and (ready or laned):
            self._rewrite(msgspec.structs.replace(after, state="~"))  # in no micro-queue while it finds its place
            if ready:
                place = (after.rank1, after.rank2, self.key | record.id)
                state, rank2 = self._lanes.arrive(record.utube or NO_UTUBE, place, was=record.state)
                after = msgspec.structs.replace(after, state=state, rank2=rank2)
            else:
                self._lanes.left(record.utube or NO_UTUBE, record.state)
        self._rewrite(after)
        self._ready((after.state == "r") - (record.state == "r"))
        self._count(STATE_COUNTER[record.state], -1)
        self._count(STATE_COUNTER[after.state], 1)
        self.effects.events.append(Event(self.tube.no, "put", after))
        return after

    def _rewrite(self, after: Record) -> None:
        row = (
            self.key | after.id, after.state, after.rank1, after.rank2, after.pri, after.created, after.expires,
            after.at, after.payload,
        )  # fmt: skip
        self.execute(Q.replace, row)

    def served(self, utube: str) -> None:
        """A head of that micro-queue was handed out."""
        if self._lanes is not None:
            self._lanes.served(utube)

    def settled(self, utube: str) -> None:
        """A taken task of that micro-queue was removed."""
        if self._lanes is not None:
            self._lanes.left(utube, "t")

    def acked(self, ids: Collection[int]) -> None:
        """These were removed by an ack, and nobody is told."""
        if ids:
            self._highest = max(self._highest, *ids)
            self.effects.removed[self.tube.no] = self.effects.removed.get(self.tube.no, 0) + len(ids)
            self._acks += len(ids)

    def apply(self, record: Record, change: Change) -> Record:
        """Carry out a change that the core decided on."""
        if record.group_no is not None:
            change = self.links.gate(record, change)
        if change.state == "t":
            self.execute(Q.touch, (self.key | record.id, change.at, change.progress))
            after = altered(record, change, "t")
        elif change.state == "-":
            after = self._remove(record, change)
        else:
            after = self._move(record, change)
        self._tell(record.state, change, after)
        if change.state == "-" and (change.ending is not None or record.group_no is not None):
            self.links.left(record, change.ending)
        return after

    def forget_idle_lanes(self) -> None:
        """Forget some micro-queues of a fair tube that are empty and whose turn is over."""
        if self._lanes is not None and self.tube.fair:
            self._lanes.forget_idle()

    def finish(self) -> Effects:
        """Put what follows, and write the counters and lanes; NoSuchTube when the tube is gone."""
        if self._links is not None:
            self._put_works(self._links.works)
            self._links.save()
        if self._lanes is not None:
            self._lanes.save()
            self._ready(self._lanes.readied)
            self._lanes.readied = 0
        if self._acks:
            self.execute(Q.bump_ack, (self.tube.no, self._acks, self._highest))
            self._acks = 0
            if not self.db.changes():
                raise no_such_tube(self.db, self.tube)
        if self._deltas:
            deltas = [self._deltas.get(name, 0) for name in _BUMPED]
            if self.execute(Q.bump, (self.tube.no, self._highest, *deltas)).get is None:
                raise no_such_tube(self.db, self.tube)
            self._deltas = {}
        return self.effects

    def _put_works(self, works: dict[str, list[bytes]]) -> None:
        """Replies and group work, each tube's in the order in which they came."""
        while works:
            name = next(iter(works))
            payloads = works.pop(name)
            if name == self.tube.name:
                self.store([plain_entry(self.tube, payload) for payload in payloads])
                continue
            tube = tubes.reply_tube(self.db, name)
            step = Step(self.db, tube, self.now, self.effects)
            step.store([plain_entry(tube, payload) for payload in payloads])
            step.finish()

    def _arrived(self, id: int, entry: Entry, newest: bool) -> Record:
        now = self.now
        group = None if entry.group is None else self.links.group_for(entry)
        rank1, rank2 = entry.rank1.value(id, now), entry.rank2.value(id, now)
        expires = None if entry.ttl is None else now + entry.ttl + entry.delay
        at: int | None = expires
        if entry.delay:
            at = now + entry.delay
        if entry.delay or (group is not None and group.state == OPEN):
            state = UNSTARTED if group is not None and group.state == OPEN else "~"
            self._count("delayed", 1)
        elif self._lanes is None:
            state = "r"
        else:
            place = (rank1, rank2, self.key | id)
            state, rank2 = self._lanes.arrive(entry.utube or NO_UTUBE, place, newest=newest)
        self._ready(state == "r")
        record = Record(
            id, state, rank1, rank2, entry.pri, entry.utube, 0, 0, now, None, expires, at, entry.ttr,
            entry.max_attempts, None, None, entry.callback, entry.payload, entry.address, entry.reply_to, entry.group,
            None if group is None else group.no,
        )  # fmt: skip
        self.effects.events.append(Event(self.tube.no, "put", record))
        return record

    def _remove(self, record: Record, change: Change) -> Record:
        self.execute(Q.delete, (self.key | record.id,))
        self._highest = max(self._highest, record.id)
        if self._lanes is not None and record.state in "rqt":
            self._lanes.left(record.utube or NO_UTUBE, record.state)
        self.effects.removed[self.tube.no] = self.effects.removed.get(self.tube.no, 0) + 1
        return altered(record, change, "-")

    def _move(self, record: Record, change: Change) -> Record:
        key, lanes, utube = self.key | record.id, self._lanes, record.utube or NO_UTUBE
        state, rank2 = change.state, 0 if self.tube.fair else record.rank2  # a turn is its lane's: only heads carry it
        if state == "r" and lanes is not None:
            state, rank2 = lanes.arrive(utube, (record.rank1, rank2, key), was=record.state)
        after = altered(record, change, state)
        row = (key, state, rank2, after.expires, after.at, after.attempts, after.owner, after.reason)
        self.execute(Q.change, row)
        if lanes is not None and change.state != "r" and record.state in "rqt":
            lanes.left(utube, record.state)
        self._ready(state == "r")
        return after

    def _tell(self, before: str, change: Change, after: Record) -> None:
        self._count(STATE_COUNTER[before], -1)
        self._count(STATE_COUNTER[after.state], 1)
        for event in change.events:
            self._count(event, 1)
            self.effects.events.append(Event(self.tube.no, event, after))

    def _count(self, name: str, by: int) -> None:
        self._deltas[name] = self._deltas.get(name, 0) + by

    def _ready(self, by: int) -> None:
        if by:
            readied = self.effects.readied
            readied[self.tube.no] = max(0, readied.get(self.tube.no, 0) + by)
