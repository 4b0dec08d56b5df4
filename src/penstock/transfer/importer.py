"""Import a tube into a store: create it under a hidden name, fill it in bounded steps, then give it its name.

Ready tasks of a micro-queue kind are imported as delayed ones whose delay is over. An import is therefore a plain write
on every store, and `advance` finds the heads of micro-queues and their turns before the tube is activated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from penstock.core.group import LIVE, OPEN, STARTED, Group, moved_address
from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record
from penstock.core.transfer import MOVE_STEP, ImportBatch, StoredOutcome, TubeCounters
from penstock.engine.store import Store

Part = TypeVar("Part", Record, StoredOutcome)
# Called with the number of tasks that were copied.
OnProgress = Callable[[int], object]
# Bytes of data per step: below the packet limits of servers, and small compared with a process.
STEP_BYTES = 4 * 1024 * 1024
# Size of the first page, because the size of the tasks is not known yet.
_FIRST_PAGE = 16


class TubeImport:
    """The import of one tube. Every step can be repeated after a crash."""

    def __init__(self, store: Store, tube: Tube) -> None:
        self._store = store
        self.tube = tube
        self._now = store.now()
        self._groups: dict[int, tuple[int, Group]] = {}  # number in the source -> number here, and the group as it was

    @property
    def last_id(self) -> int:
        """The highest imported task id. All tasks below it are imported, too."""
        return self._store.counters(self.tube).last_id

    def begin_group(self, group: Group) -> None:
        """Create a group before its tasks are imported."""
        found = [each for each in self._store.groups(self.tube, name=group.name) if each.state in LIVE]
        here = found[0] if found else self._store.open_group(self.tube, group.name, on_failure=group.on_failure)
        self._store.change_group(self.tube, here.no, here.name, end=group.end, cancel=group.cancel)
        self._groups[group.no] = here.no, group

    def find_groups(self, groups: Sequence[Group]) -> None:
        """Look up the groups after all tasks were imported before; some may be over by now."""
        here = {group.name: group.no for group in live_groups(self._store, self.tube)}
        self._groups = {group.no: (here[group.name], group) for group in groups if group.name in here}

    def add_tasks(self, records: Sequence[Record], upto: int) -> None:
        """Import the next tasks, in id order: all tasks up to id `upto`."""
        imported = [self._imported(record) for record in records]
        if self.tube.shards > 1 and self.tube.kind.per_utube:
            imported = self._with_unique_addresses(imported)
        for batch in _batches(imported):
            self._store.import_batch(self.tube, ImportBatch(batch, batch[-1].id))
        if not records or upto > records[-1].id:
            self._store.import_batch(self.tube, ImportBatch(upto=upto))

    def add_outcomes(self, outcomes: Sequence[StoredOutcome]) -> None:
        """Import outcomes."""
        numbers = self._numbers
        moved = [replace(each, address=moved_address(each.address, numbers) or "") for each in outcomes]
        for batch in _batches(moved):
            self._store.import_batch(self.tube, ImportBatch(outcomes=batch))

    def activate(self, name: str, counters: TubeCounters) -> None:
        """Finish the import: start groups, order the tasks, and give the tube its name."""
        for no, group in self._groups.values():
            if group.state == STARTED:
                self._store.change_group(self.tube, no, group.name, to=STARTED)
        while self._store.advance(self.tube).more:
            pass
        totals = {no: (group.total, group.failed) for no, group in self._groups.values()}
        self._store.activate_tube(self.tube, name, counters, totals)

    @property
    def _numbers(self) -> dict[int, int]:
        return {elsewhere: here for elsewhere, (here, _) in self._groups.items()}

    def _imported(self, record: Record) -> Record:
        """The task as imported. Leases are not imported: a taken task is released, as at the end of its session."""
        if not self.tube.kind.leased:
            return replace(record, owner=None, progress=None)
        if record.group_no is not None:
            record = self._with_new_group(record)
        if record.state == "t":
            back = came_back(record, self._now, "release")
            if back.state == "!":
                record = replace(record, state="!", at=back.at, reason=back.reason)
        if record.state in ("r", "q", "t"):
            per_utube = self.tube.kind.per_utube
            record = replace(
                record, state="~" if per_utube else "r", at=record.created if per_utube else record.expires
            )
        return replace(record, owner=None, progress=None, rank2=0 if self.tube.fair else record.rank2)

    def _with_unique_addresses(self, records: Sequence[Record]) -> list[Record]:
        """Drop duplicate addresses, which the shards of a tube may have; the first task keeps the address."""
        holders: dict[str, int] = {}
        for record in records:
            if record.address is not None and record.address not in holders:
                holders[record.address] = self._store.outcomes(self.tube, [record.address])[0].id or record.id
        return [
            record if record.address is None or holders[record.address] == record.id else replace(record, address=None)
            for record in records
        ]

    def _with_new_group(self, record: Record) -> Record:
        assert record.group_no is not None
        record = replace(record, address=moved_address(record.address, self._numbers))
        if record.group_no in self._groups:
            return replace(record, group_no=self._groups[record.group_no][0])
        state = "~" if record.state == UNSTARTED else record.state
        at = record.created if record.state == UNSTARTED else record.at
        return replace(record, state=state, at=at, group=None, group_no=None)


def discard(store: Store, tube: Tube) -> None:
    """Remove a partly imported tube without events: its tasks are still at their source."""
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
        page = store.read_page(tube, Group, after, MOVE_STEP)
        yield from (group for group in page if group.state in (OPEN, STARTED))
        more = len(page) == MOVE_STEP
        after = page[-1].no if page else after


def read_tasks(store: Store, tube: Tube, after: int = 0) -> Iterator[list[Record]]:
    """Every task above an id, a page at a time."""
    return _pages(lambda last, limit: store.read_page(tube, Record, last, limit), after)


def read_outcomes(store: Store, tube: Tube) -> Iterator[list[StoredOutcome]]:
    """Every outcome, a page at a time."""
    return _pages(lambda last, limit: store.read_page(tube, StoredOutcome, last, limit), 0)


def size_of(item: Record | StoredOutcome) -> int:
    """The bytes of a task's data, or of a result."""
    return len(item.payload if isinstance(item, Record) else item.ending.result or b"")


def _pages(read: Callable[[int, int], list[Part]], after: int) -> Iterator[list[Part]]:
    """All items above an id, in pages that get smaller for larger items."""
    limit = _FIRST_PAGE
    while page := read(after, limit):
        yield page
        after = page[-1].id
        each = sum(map(size_of, page)) // len(page) + 1
        limit = max(1, min(MOVE_STEP, STEP_BYTES // each))


def _batches(items: Sequence[Part]) -> Iterator[list[Part]]:
    """The items in lists that are small enough for one step."""
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
