"""A tube comes into a store: created where nobody sees it, filled in bounded steps, then activated under its name.

Ready tasks of a micro-queue kind come in as delayed ones whose time is over. So an import is plain storing on every
store, and the store's own `advance` finds the heads of micro-queues and their turns, before the tube is activated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from penstock.core.group import LIVE, OPEN, STARTED, Group, moved_address
from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record
from penstock.core.transfer import MOVE_STEP, ImportBatch, Kept, TubeCounters
from penstock.engine.store import Store

Part = TypeVar("Part", Record, Kept)
# Called with the number of tasks that were copied.
Tell = Callable[[int], object]
# Data in one step: below what a server takes in one packet, and little beside a process's own memory.
STEP_BYTES = 4 * 1024 * 1024
# Nothing is known of the size of the first ones.
_FIRST_PAGE = 16


class Arrival:
    """One tube on its way into a store. Everything may be done again after a crash."""

    def __init__(self, store: Store, tube: Tube) -> None:
        self._store = store
        self.tube = tube
        self._now = store.now()
        self._groups: dict[int, tuple[int, Group]] = {}  # number elsewhere -> number here, the group as it was

    @property
    def last_id(self) -> int:
        """All up to this one are here."""
        return self._store.counters(self.tube).last_id

    def begin_group(self, group: Group) -> None:
        """Tasks of this group will come."""
        found = [each for each in self._store.groups(self.tube, name=group.name) if each.state in LIVE]
        here = found[0] if found else self._store.open_group(self.tube, group.name, on_failure=group.on_failure)
        self._store.change_group(self.tube, here.no, end=group.end, cancel=group.cancel)
        self._groups[group.no] = here.no, group

    def find_groups(self, groups: Sequence[Group]) -> None:
        """All tasks are here already; of these groups, some may be over by now."""
        here = {group.name: group.no for group in live_groups(self._store, self.tube)}
        self._groups = {group.no: (here[group.name], group) for group in groups if group.name in here}

    def take_in(self, records: Sequence[Record], upto: int) -> None:
        """The next tasks, in the order of their ids, all there are up to an id."""
        imported = [self._imported(record) for record in records]
        if self.tube.shards > 1 and self.tube.kind.per_utube:
            imported = self._told_apart(imported)
        for batch in _batches(imported):
            self._store.import_batch(self.tube, ImportBatch(batch, batch[-1].id))
        if not records or upto > records[-1].id:
            self._store.import_batch(self.tube, ImportBatch(upto=upto))

    def keep(self, outcomes: Sequence[Kept]) -> None:
        """Outcomes that are kept here from now on."""
        numbers = self._numbers
        moved = [replace(each, address=moved_address(each.address, numbers) or "") for each in outcomes]
        for batch in _batches(moved):
            self._store.import_batch(self.tube, ImportBatch(outcomes=batch))

    def activate(self, name: str, counters: TubeCounters) -> None:
        """All is here: groups start, each task finds its place, and the tube is there for everyone."""
        for no, group in self._groups.values():
            if group.state == STARTED:
                self._store.change_group(self.tube, no, to=STARTED)
        while self._store.advance(self.tube).more:
            pass
        totals = {no: (group.total, group.failed) for no, group in self._groups.values()}
        self._store.activate_tube(self.tube, name, counters, totals)

    @property
    def _numbers(self) -> dict[int, int]:
        return {elsewhere: here for elsewhere, (here, _) in self._groups.items()}

    def _imported(self, record: Record) -> Record:
        """The task as it comes in. Nobody here holds it: what was taken comes back as at the end of its session."""
        if not self.tube.kind.leased:
            return replace(record, owner=None, progress=None)
        if record.group_no is not None:
            record = self._regrouped(record)
        if record.state == "t":
            back = came_back(record, self._now, "release")
            if back.state == "!":
                record = replace(record, state="!", at=back.at, reason=back.reason)
        if record.state in ("r", "q", "t"):
            laned = self.tube.kind.per_utube
            record = replace(record, state="~" if laned else "r", at=record.created if laned else record.expires)
        return replace(record, owner=None, progress=None, rank2=0 if self.tube.fair else record.rank2)

    def _told_apart(self, records: Sequence[Record]) -> list[Record]:
        """Where shards have addresses of their own, two tasks may come with one: it is that of the first."""
        holders: dict[str, int] = {}
        for record in records:
            if record.address is not None and record.address not in holders:
                holders[record.address] = self._store.outcome(self.tube, record.address).id or record.id
        return [
            record if record.address is None or holders[record.address] == record.id else replace(record, address=None)
            for record in records
        ]

    def _regrouped(self, record: Record) -> Record:
        assert record.group_no is not None
        record = replace(record, address=moved_address(record.address, self._numbers))
        if record.group_no in self._groups:
            return replace(record, group_no=self._groups[record.group_no][0])
        state = "~" if record.state == UNSTARTED else record.state
        at = record.created if record.state == UNSTARTED else record.at
        return replace(record, state=state, at=at, group=None, group_no=None)


def discard(store: Store, tube: Tube) -> None:
    """Remove an importing tube without events: its tasks are elsewhere, or never came."""
    store.erase_tube(tube)
    store.drop_tube(tube)


def live_groups(store: Store, tube: Tube) -> Iterator[Group]:
    """Every group that is open or started, by name."""
    after, more = "", True
    while more:
        page = store.groups(tube, after=after, limit=MOVE_STEP)
        yield from page
        more = len(page) == MOVE_STEP
        after = page[-1].name if page else ""


def read_groups(store: Store, tube: Tube, after: int = 0) -> Iterator[Group]:
    """Every group that is not over, by number, also of a frozen tube."""
    more = True
    while more:
        page = store.read_groups(tube, after, MOVE_STEP)
        yield from (group for group in page if group.state in (OPEN, STARTED))
        more = len(page) == MOVE_STEP
        after = page[-1].no if page else after


def read_tasks(store: Store, tube: Tube, after: int = 0) -> Iterator[list[Record]]:
    """Every task above an id, a page at a time."""
    return _pages(lambda last, limit: store.read_tasks(tube, last, limit), after)


def read_outcomes(store: Store, tube: Tube) -> Iterator[list[Kept]]:
    """Every outcome, a page at a time."""
    return _pages(lambda last, limit: store.read_outcomes(tube, last, limit), 0)


def size_of(item: Record | Kept) -> int:
    """The bytes of a task's data, or of a result."""
    return len(item.payload if isinstance(item, Record) else item.ending.result or b"")


def _pages(read: Callable[[int, int], list[Part]], after: int) -> Iterator[list[Part]]:
    """All above an id; the larger they are, the fewer a page."""
    limit = _FIRST_PAGE
    while page := read(after, limit):
        yield page
        after = page[-1].id
        each = sum(map(size_of, page)) // len(page) + 1
        limit = max(1, min(MOVE_STEP, STEP_BYTES // each))


def _batches(items: Sequence[Part]) -> Iterator[list[Part]]:
    """The same in lists that are small enough for a step."""
    batch: list[Part] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= STEP_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
