"""Micro-queues in SQLite: the rows that one step touches, and the heads that they must have.

The rule: the first (limit - taken) ready tasks of a micro-queue are its heads. A step stores tasks that become ready as
waiting and counts all changes of state here; then `write` promotes and demotes tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from penstock.core.micro_queue import MicroQueueState, next_turn
from penstock.core.options import Tube
from penstock.core.task import NO_UTUBE, QUEUED, Record
from penstock.store.sqlite.sqlite_queries import SET_QUEUE, Q, as_json, insert_rows


class Queues:
    """The micro-queues that one transaction changes in a tube; `write` writes them."""

    def __init__(self, db: apsw.Connection, tube: Tube, now: int, labels: set[str]) -> None:
        self._db = db
        self._tube = tube
        self._now = now
        found = db.execute(Q.queues_named, (tube.no, as_json(list(labels)))) if labels else ()
        stored = {label: MicroQueueState(*numbers) for label, *numbers in found}
        self._rows = {label: stored.get(label) or MicroQueueState() for label in labels}
        self._overtaken: set[str] = set()  # micro-queues where a waiting task may come before a head

    def place(self, record: Record) -> Record:
        """Add a new ready task, as a head or as waiting."""
        label, fair = record.utube or NO_UTUBE, self._tube.fair
        row = self._rows[label]
        self._begin_turn(row)
        if row.add(self._tube.utube_limit) == QUEUED:
            if self._tube.kind.order[0] != "id":  # else a new task never comes before another
                self._overtaken.add(label)
            return msgspec.structs.replace(record, state=QUEUED, rank2=0 if fair else record.rank2)
        return msgspec.structs.replace(record, rank2=row.turn) if fair else record

    def move(self, label: str, before: str, after: str) -> None:
        """Count a stored task's change of state; one that becomes ready must be stored as waiting. In a fair tube, a
        hand-out moves the micro-queue with its remaining heads behind the others."""
        row = self._rows[label]
        if after == "r":
            self._begin_turn(row)
            self._overtaken.add(label)
        row.move(before, after)
        if after == "t" and self._tube.fair:
            row.turn = next_turn(row.turn, self._now)
            if row.heads:
                self._db.execute(Q.turn_heads, (self._tube.no, label, row.turn))

    def write(self) -> int:
        """Promote the first ready tasks to heads and write the rows. Returns how many more tasks can be taken."""
        no, fair, limit, gained = self._tube.no, self._tube.fair, self._tube.utube_limit, 0
        rooms: dict[str, int] = {}
        changed, empty = [], []
        for label, row in self._rows.items():
            gained -= self._demote(label, row) if label in self._overtaken else 0
            if promoted := row.promote(limit):
                rooms[label] = promoted
                gained += promoted
            if row.empty and (not fair or row.turn < self._now):
                empty.append((no, label))
            else:
                changed.append((no, label, row.taken, row.heads, row.waiting, row.turn))
        insert_rows(self._db, SET_QUEUE, changed)
        self._db.executemany(Q.forget_queue, empty)
        while rooms:  # promotes the first waiting task of each
            self._db.execute(Q.promote_many, (no, as_json(list(rooms)), fair))
            rooms = {label: room - 1 for label, room in rooms.items() if room > 1}
        return gained

    def _begin_turn(self, row: MicroQueueState) -> None:
        if self._tube.fair and row.empty:
            row.turn = next_turn(row.turn, self._now)

    def _demote(self, label: str, row: MicroQueueState) -> int:
        """Make all heads wait if a waiting task comes before one of them. Returns how many."""
        place, heads = (self._tube.no, label, self._tube.fair), row.heads
        if not (heads and row.waiting and self._db.execute(Q.is_overtaken, place).get):
            return 0
        self._db.execute(Q.demote, place)
        row.waiting, row.heads = row.waiting + heads, 0
        return heads


def move_tasks(db: apsw.Connection, tube: Tube, now: int, moves: Sequence[tuple[str, str, str]]) -> int:
    """Count changes of state: micro-queue, state before, state after. Returns how many more tasks can be taken than
    before."""
    queues = Queues(db, tube, now, {label for label, _, _ in moves})
    for move in moves:
        queues.move(*move)
    return queues.write()


def count_removed(db: apsw.Connection, tube: Tube, now: int, labels: Sequence[str]) -> int:
    """Count taken tasks of these micro-queues that were removed. Returns how many tasks became takeable.

    In a micro-queue that was full, the first waiting task becomes a head and nothing else changes, so its counters are
    not read. This saves a third of an ack of one task, a quarter of one of many.
    """
    no, limit = tube.no, tube.utube_limit
    passed: set[str] = set()
    if len(labels) == 1 and not tube.fair:
        db.execute(Q.pass_on, (no, labels[0], limit))
        if db.changes():
            db.execute(Q.promote, (no, labels[0]))
            return 1
    elif not tube.fair and len(set(labels)) == len(labels):
        passed = {label for (label,) in db.execute(Q.pass_on_many, (no, as_json(labels), limit))}
        db.execute(Q.promote_many, (no, as_json(list(passed)), False))
    left = [(label, "t", "-") for label in labels if label not in passed]
    return len(passed) + (move_tasks(db, tube, now, left) if left else 0)
