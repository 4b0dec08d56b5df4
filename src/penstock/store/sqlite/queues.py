"""Micro-queues in SQLite: the rows that one step touches, and the heads that they must have.

The rule: the first (limit - taken) ready tasks of a micro-queue are its heads. A step writes tasks that become ready as
waiting, gathers here what came and went, and `settle` promotes and demotes.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw
import msgspec

from penstock.core.lane import LaneState, next_turn
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, QUEUED, Record
from penstock.store.sqlite.queries import Q

_encode = msgspec.json.Encoder().encode


class Queues:
    """The micro-queues of one tube during one transaction; `settle` writes those that were touched."""

    def __init__(self, db: apsw.Connection, tube: Tube, now: int) -> None:
        self._db = db
        self._tube = tube
        self._now = now
        self._rows: dict[str, LaneState] = {}
        self._stored: set[str] = set()
        self._overtaken: set[str] = set()  # where a head may have to give way
        self._promoted = 0
        self._never_overtakes = tube.kind.order[0] == "id"

    def know(self, records: Iterable[Record]) -> None:
        """Read the rows of these tasks' micro-queues, in one query."""
        self.know_labels({record.utube or NO_UTUBE for record in records})

    def know_labels(self, names: set[str]) -> None:
        """The same, of micro-queues by name."""
        labels = list(names - self._rows.keys())
        if labels:
            if len(labels) == 1:
                found = self._db.execute(Q.queue_named, (self._tube.no, labels[0]))
            else:
                found = self._db.execute(Q.queues_named, (self._tube.no, _encode(labels).decode()))
            stored = {label: LaneState(*numbers) for label, *numbers in found}
            self._stored.update(stored)
            for label in labels:
                self._rows[label] = stored.get(label) or LaneState()

    def place(self, record: Record) -> Record:
        """A new task becomes ready: as a head where there is room and nobody waits, else behind the others."""
        label = record.utube or NO_UTUBE
        row = self._rows[label]
        self._begin_turn(row)
        if row.waiting or row.room(self._tube.utube_limit) <= 0:
            row.waiting += 1
            if not self._never_overtakes:
                self._overtaken.add(label)
            return msgspec.structs.replace(record, state=QUEUED, rank2=0 if self._tube.fair else record.rank2)
        row.heads += 1
        return msgspec.structs.replace(record, rank2=row.turn) if self._tube.fair else record

    def move(self, label: str, before: str, after: str) -> None:
        """A task that is there went from one state to another; one that becomes ready was written as waiting."""
        row = self._rows[label]
        if after == "r":
            self._begin_turn(row)
        if before == "t":
            row.taken -= 1
        elif before == "r":
            row.heads -= 1
        elif before == QUEUED:
            row.waiting -= 1
        if after == "r":
            row.waiting += 1
            self._overtaken.add(label)
        elif after == "t":
            row.taken += 1

    def serve(self, label: str) -> None:
        """A head was handed out in a fair tube: its micro-queue goes behind the others, with the heads it has left."""
        row = self._rows[label]
        row.heads -= 1
        row.taken += 1
        row.turn = next_turn(row.turn, self._now)
        if row.heads:
            self._db.execute(Q.turn_heads, (self._tube.no, label, row.turn))

    def pass_on(self, label: str) -> bool:
        """Give the place of a taken task that is gone to the first that waits, if anybody does, without reading rows.

        While somebody waits there was no room, so nothing else changes. It saves a third of an ack.
        """
        if self._tube.fair:
            return False
        self._db.execute(Q.promote_first, (self._tube.no, label))
        if not self._db.changes():
            return False
        self._db.execute(Q.pass_on, (self._tube.no, label))
        return True

    def settle(self) -> int:
        """Make heads of the first ready tasks and write the rows. Returns how many more can be taken than before."""
        self._promote_each()
        gained = sum([self._settle_one(label, row) for label, row in self._rows.items()]) + self._promoted
        no, fair, now = self._tube.no, self._tube.fair, self._now
        changed: dict[str, list[tuple[int | str, ...]]] = {Q.set_queue: [], Q.add_queue_row: [], Q.forget_queue: []}
        for label, row in self._rows.items():
            stored = label in self._stored
            if row.empty and (not fair or row.turn < now):
                if stored:
                    changed[Q.forget_queue].append((no, label))
            else:
                values = (no, label, row.taken, row.heads, row.waiting, row.turn)
                changed[Q.set_queue if stored else Q.add_queue_row].append(values)
        for query, rows in changed.items():
            if rows:
                self._db.executemany(query, rows)
        self._rows.clear()
        self._stored.clear()
        self._overtaken.clear()
        return gained

    def _promote_each(self) -> None:
        """The first that waits of every micro-queue with room, in one statement where there are several."""
        self._promoted = 0
        limit = self._tube.utube_limit
        if self._tube.fair or len(self._rows) < 2:
            return
        labels = [label for label, row in self._rows.items() if row.waiting and row.room(limit) > 0]
        if labels:
            self._db.execute(Q.promote_each, (self._tube.no, _encode(labels).decode()))
            for label in labels:
                self._rows[label].heads += 1
                self._rows[label].waiting -= 1
            self._promoted = len(labels)

    def _begin_turn(self, row: LaneState) -> None:
        if self._tube.fair and row.empty:
            row.turn = next_turn(row.turn, self._now)

    def _settle_one(self, label: str, row: LaneState) -> int:
        room = min(row.room(self._tube.utube_limit), row.waiting)
        if room > 0:
            turn = row.turn if self._tube.fair else None
            self._db.execute(Q.promote, (self._tube.no, label, room, turn))
            row.heads += room
            row.waiting -= room
        if label in self._overtaken:
            while row.heads and row.waiting and self._swap(label, row):
                pass
        return max(room, 0)

    def _swap(self, label: str, row: LaneState) -> bool:
        """Let the first that waits take the place of the last head, if it comes before it."""
        fair = self._tube.fair
        first, worst = (
            self._db.execute(query, (self._tube.no, label)).get for query in (Q.first_waiting, Q.worst_head)
        )
        if (first[0], 0 if fair else first[1], first[2]) > (worst[0], 0 if fair else worst[1], worst[2]):
            return False
        self._db.execute(Q.set_head, (worst[2], QUEUED, 0 if fair else worst[1]))
        self._db.execute(Q.set_head, (first[2], "r", row.turn if fair else first[1]))
        return True
