"""The groups of one tube: which tasks are theirs, and which groups have tasks that must follow their record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.task import UNSTARTED, Entry, Record
from penstock.store.memory.heap import Key, LazyHeap, pop_due


class Groups:
    """Shares the records with its tube."""

    __slots__ = ("_ends", "_last_no", "_records", "_unstarted", "by_no", "live", "members", "moving")

    def __init__(self, records: dict[int, Record]) -> None:
        self._records = records
        self._last_no = 0
        self._unstarted: dict[int, LazyHeap[Key]] = {}
        self._ends: LazyHeap[tuple[int, int]] = LazyHeap(self._ends_then)
        self.by_no: dict[int, Group] = {}
        self.live: dict[str, int] = {}
        self.members: dict[int, set[int]] = {}
        self.moving: dict[int, list[int]] = {}  # with the tasks of a cancelled one, those at the end to go first

    def open(self, name: str) -> Group:
        """The live group of that name, or a new one."""
        no = self.live.get(name)
        if no is None:
            self._last_no = no = self._last_no + 1
            self.by_no[no] = Group(no, name)
            self.live[name] = no
            self.members[no] = set()
            self._unstarted[no] = LazyHeap(self._waits)
        return self.by_no[no]

    def get(self, no: int, now: int) -> Group | None:
        """The group with that number, unless it is past its retention."""
        group = self.by_no.get(no)
        return None if group is None or rules.forgotten(group, now) else group

    def must_take(self, entry: Entry, now: int) -> None:
        """NotFound where an entry is for one group and that has ended."""
        if entry.group is not None and entry.group_no is not None:
            rules.must_live(self.by_no.get(entry.group_no), entry.group, now)

    def must_outlast(self, going: Sequence[Record], entries: Sequence[Entry]) -> None:
        """NotFound where an entry is for one group, and the tasks that go first are the last of it."""
        gone = Counter(record.group_no for record in going if record.group_no is not None)
        over = {no for no, count in gone.items() if self.by_no[no].left == count and self.by_no[no].state != rules.OPEN}
        for entry in entries:
            if entry.group_no in over:
                raise rules.ended(entry.group or "")

    def of(self, entry: Entry) -> Group | None:
        """The group that an entry goes to, begun if it must be."""
        if entry.group is None:
            return None
        return self.open(entry.group) if entry.group_no is None else self.by_no[entry.group_no]

    def state_of(self, record: Record) -> str:
        """The state of the task's group."""
        assert record.group_no is not None
        return self.by_no[record.group_no].state

    def cancelled(self, record: Record) -> bool:
        """Whether the task is gone, though it was not removed yet."""
        return record.group_no is not None and self.state_of(record) == rules.CANCELLING

    def arrived(self, record: Record) -> None:
        """One task more."""
        assert record.group_no is not None
        group = self.by_no[record.group_no]
        group.total += 1
        group.left += 1
        self.members[group.no].add(record.id)

    def left(self, record: Record) -> Group:
        """One task less."""
        assert record.group_no is not None
        group = self.by_no[record.group_no]
        group.left -= 1
        self.members[group.no].discard(record.id)
        return group

    def index(self, record: Record) -> None:
        """It waits for the start of its group."""
        assert record.group_no is not None
        key = (record.rank1, record.rank2, record.id)
        self._unstarted[record.group_no].push(key, len(self.members[record.group_no]) + 1)

    def turned(self, group: Group) -> None:
        """Its record was changed: its tasks, if any, follow."""
        if group.state not in rules.LIVE and self.live.get(group.name) == group.no:
            del self.live[group.name]
        if group.moving:
            cancelled = group.state == rules.CANCELLING
            self.moving[group.no] = sorted(self.members[group.no], reverse=True) if cancelled else []

    def over(self, group: Group) -> None:
        """Nothing is left of it."""
        self.turned(group)
        self.moving.pop(group.no, None)
        del self.members[group.no], self._unstarted[group.no]
        assert group.until is not None
        self._ends.push((group.until, group.no), len(self.by_no))

    def next_to_move(self) -> Record | None:
        """A task that must follow its group's record; a group without any more is done with."""
        while self.moving:
            group = self.by_no[min(self.moving)]
            record = self._next_of(group)
            if record is not None:
                return record
            group.moving = False
            del self.moving[group.no]
        return None

    def sweep(self, now: int, limit: int) -> None:
        """Forget some that are over and past their retention."""
        for no in pop_due(self._ends, now, limit):
            del self.by_no[no]

    def index_anew(self) -> None:
        """Empty indexes, for repair."""
        self._unstarted = {no: LazyHeap(self._waits) for no in self.members}

    def _next_of(self, group: Group) -> Record | None:
        if group.state != rules.CANCELLING:
            first = self._unstarted[group.no].first()
            return None if first is None else self._records[first[2]]
        ids = self.moving[group.no]
        while ids and ids[-1] not in self._records:
            ids.pop()
        return self._records[ids[-1]] if ids else None

    def _waits(self, key: Key) -> bool:
        record = self._records.get(key[2])
        return record is not None and record.state == UNSTARTED and (record.rank1, record.rank2) == key[:2]

    def _ends_then(self, entry: tuple[int, int]) -> bool:
        group = self.by_no.get(entry[1])
        return group is not None and group.until == entry[0]
