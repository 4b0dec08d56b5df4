"""Addresses, outcomes, replies and groups in SQLite: what one step touches of them."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from penstock.core import group as rules
from penstock.core.address import addresses
from penstock.core.ending import SUPERSEDED_MS, Ending, Sought
from penstock.core.group import Group
from penstock.core.lifecycle import Change
from penstock.core.options import Tube
from penstock.core.reply import reply_payload
from penstock.core.task import Entry, Record
from penstock.store.base import Effects
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q

# Outcomes forgotten with each new one, so that they never outnumber what the retention asks for, even in a
# tube that nobody ever advances.
_SWEPT_PER_OUTCOME = 2


class Links:
    """Part of a step. `save` writes the groups it touched; `works` are to be put before that, by tube name."""

    def __init__(self, db: apsw.Connection, tube: Tube, now: int, effects: Effects) -> None:
        self._execute = db.execute
        self._tube = tube
        self._now = now
        self._effects = effects
        self._groups: dict[int, Group] = {}
        self._moving: dict[int, bool] = {}  # as stored
        self._changed: set[int] = set()
        self.works: dict[str, list[bytes]] = {}

    # addresses

    def holders(self, entries: Sequence[Entry]) -> list[Record]:
        """The tasks that hold addresses of these entries, each once, in id order."""
        rows = (self._execute(Q.by_address, (self._tube.no, address)).get for address in set(addresses(entries)))
        return sorted((Record(*row) for row in rows if row), key=lambda record: record.id)

    def arrived(self, record: Record) -> None:
        """A task was put."""
        if record.address is not None and self._tube.kind.leased:
            until = self._now + SUPERSEDED_MS
            self._execute(Q.supersede_outcome, (self._tube.no, record.address, until))
        if record.group_no is not None:
            group = self._of(record)
            group.total += 1
            group.left += 1
            self._changed.add(group.no)

    def left(self, record: Record, ending: Ending | None) -> None:
        """A task is gone: keep its outcome, reply, and end its group after the last one."""
        if record.address is not None and ending is not None and self._tube.kind.leased:
            self._keep(record, record.address, ending)
            self._effects.ended.append(("task", self._tube.no, record.id))
        if record.reply_to is not None and ending is not None:
            self.works.setdefault(record.reply_to, []).append(reply_payload(record, ending))
        if record.group_no is not None:
            group = self._of(record)
            group.left -= 1
            self.end(group)

    def _keep(self, record: Record, address: str, ending: Ending) -> None:
        key, until = self._tube.no << ID_BITS | record.id, self._now + self._tube.retention
        self._execute(Q.sweep_outcomes, (self._tube.no, self._now, _SWEPT_PER_OUTCOME))
        row = (key, self._tube.no, address, ending.status, ending.result, ending.error, ending.code, until)
        self._execute(Q.keep_outcome, row)

    # groups

    def group(self, no: int) -> Group | None:
        """The group with that number, unless it is past its retention."""
        if no not in self._groups:
            row = self._execute(Q.group, (no, self._tube.no)).get
            if row is None:
                return None
            self._known(load_group(row))
        group = self._groups[no]
        return None if rules.forgotten(group, self._now) else group

    def open(self, name: str) -> Group:
        """The live group of that name, or a new one."""
        row = self._execute(Q.live_group, (self._tube.no, name)).get
        if row is None:
            return self._known(Group(self._execute(Q.add_group, (self._tube.no, name)).get, name))
        return self._known(load_group(row))

    def _known(self, stored: Group) -> Group:
        self._moving.setdefault(stored.no, stored.moving)
        return self._groups.setdefault(stored.no, stored)

    def must_take(self, entry: Entry) -> None:
        """NotFound where an entry is for one group and that has ended."""
        if entry.group is not None and entry.group_no is not None:
            rules.must_live(self.group(entry.group_no), entry.group, self._now)

    def group_for(self, entry: Entry) -> Group:
        """The group that an entry goes to, begun if it must be."""
        assert entry.group is not None
        if entry.group_no is None:
            return self.open(entry.group)
        return rules.must_live(self.group(entry.group_no), entry.group, self._now)

    def cancelled(self, record: Record) -> bool:
        """Whether the task is gone with its group, though it was not removed yet."""
        return record.group_no is not None and self._of(record).state == rules.CANCELLING

    def gate(self, record: Record, change: Change) -> Change:
        """What a change becomes in the task's group."""
        return rules.gate(record, change, self._of(record).state)

    def changed(self, group: Group) -> None:
        """It must be written."""
        self._changed.add(group.no)

    def end(self, group: Group) -> None:
        """Call the group over if nothing is left of it, and put its work."""
        self.changed(group)
        work = rules.end(group, self._now + self._tube.retention)
        if work is not None:
            self.works.setdefault(self._tube.name, []).append(work)
        if group.state in rules.OVER:
            self._effects.ended.append(("group", self._tube.no, group.no))
            self.save()  # a new one of its name may begin in this step

    def moving(self) -> list[Group]:
        """The groups whose tasks must follow."""
        self.save()
        rows = list(self._execute(Q.moving_groups, (self._tube.no,)))
        return [self._known(load_group(row)) for row in rows]

    def save(self) -> None:
        """Write the groups that were touched."""
        moved = False
        for no in sorted(self._changed):
            group = self._groups[no]
            row = (no, group.state, group.total, group.left, group.end, group.cancel, group.moving, group.until)
            self._execute(Q.save_group, row)
            moved |= self._moving[no] != group.moving
            self._moving[no] = group.moving
        self._changed.clear()
        if moved:
            self._execute(Q.note_moving, (self._tube.no,))

    def _of(self, record: Record) -> Group:
        assert record.group_no is not None
        group = self.group(record.group_no)
        assert group is not None, "a task keeps its group's record"
        return group


def load_group(row: tuple[int, str, str, int, int, bytes | None, bytes | None, int, int | None]) -> Group:
    """The group of a stored row."""
    no, name, state, total, left, end, cancel, moving, until = row
    return Group(no, name, state, total, left, end, cancel, bool(moving), until)


def seek(db: apsw.Connection, tube: Tube, address: str, now: int) -> Sought:
    """The live task of an address, or how the last one ended."""
    id = db.execute(Q.address_id, (tube.no, address)).get
    if id is not None:
        return Sought(id)
    return _ended(db.execute(Q.last_outcome, (tube.no, address, now)).get)


def sought(db: apsw.Connection, tube: Tube, id: int, now: int) -> Sought:
    """A task by id, there or ended."""
    key = tube.no << ID_BITS | id
    if db.execute(Q.has_task, (key,)).get is not None:
        return Sought(id)
    return _ended(db.execute(Q.outcome, (key, now)).get)


def _ended(row: tuple[str, bytes | None, str | None, str | None] | None) -> Sought:
    return Sought() if row is None else Sought(ending=Ending(*row))
