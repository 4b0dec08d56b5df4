"""Export a tube into a file, and import it from one."""

from __future__ import annotations

from typing import BinaryIO

from penstock.core import names
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.core.transfer import MOVE_STEP, StoredOutcome, importing
from penstock.engine.store import Store, load_tube
from penstock.errors import BadValue, NoSuchTube, TubeExists, TubeMismatch
from penstock.transfer.importer import (
    STEP_BYTES,
    OnProgress,
    TubeImport,
    discard,
    read_groups,
    read_outcomes,
    read_tasks,
    size_of,
)
from penstock.transfer.tube_file import End, Reader, Writer

_REMEDY = "drop it, or import under another name with --tube"


def export_tube(store: Store, tube: Tube, file: BinaryIO, on_progress: OnProgress) -> int:
    """Write a tube to a file. Returns the number of tasks. The file is not a snapshot: concurrent changes may be in it
    or not, task by task."""
    while store.advance(tube).more:
        pass
    writer = Writer(file)
    writer.begin(tube.name, tube.kind, tube.given, paused=store.counters(tube).paused)
    groups: set[int] = set()
    count = 0
    for page in read_tasks(store, tube):
        if not {record.group_no for record in page} - {None} <= groups:
            groups |= _write_groups(store, tube, writer, groups)
        # A missing group is over or cancelled, and its tasks were removed while this was read.
        there = [record for record in page if record.group_no is None or record.group_no in groups]
        writer.tasks(there)
        count += len(there)
        on_progress(len(page))
    _write_groups(store, tube, writer, groups)
    for outcomes in read_outcomes(store, tube):
        writer.outcomes(outcomes)
    writer.end(store.counters(tube))
    return count


def _write_groups(store: Store, tube: Tube, writer: Writer, written: set[int]) -> set[int]:
    """Write the groups that are not written yet. Returns the numbers of all groups."""
    groups = list(read_groups(store, tube, max(written, default=0)))
    writer.groups(groups)
    return {group.no for group in groups}


class Import:
    """The import of one file. The tube is hidden until `run` has finished; if it fails, nothing is left."""

    def __init__(self, store: Store, file: BinaryIO, called: str, name: str | None = None) -> None:
        self._store = store
        self._reader = Reader(file, called)
        self.name = self._reader.header.name if name is None else names.name("tube", name)
        self._records: list[Record] = []
        self._outcomes: list[StoredOutcome] = []
        self._bytes = 0

    def run(self, on_progress: OnProgress, *, discard_partial: bool = False) -> int:
        """Import the file. Returns the number of tasks. `discard_partial` first removes what a killed import left."""
        _must_not_be_importing(self._store, self.name, discard_partial=discard_partial)
        self._empty_one()
        header = self._reader.header
        tube = self._store.save_tube(importing(self.name), header.kind, header.options, exist_ok=False)
        try:
            return self._read_in(TubeImport(self._store, tube), on_progress)
        except BaseException:
            if load_tube(self._store, tube.name) is not None:  # otherwise it is activated
                discard(self._store, tube)
            raise

    def _read_in(self, target: TubeImport, on_progress: OnProgress) -> int:
        self._store.write_tube(target.tube, paused=self._reader.header.paused)
        count = 0
        for item in self._reader.items():
            if isinstance(item, Record):
                self._records.append(item)
                self._bytes += size_of(item)
                count += 1
            elif isinstance(item, StoredOutcome):
                self._outcomes.append(item)
                self._bytes += size_of(item)
            full = self._bytes >= STEP_BYTES or len(self._records) + len(self._outcomes) >= MOVE_STEP
            if full or isinstance(item, (Group, End)):
                on_progress(len(self._records))
                self._flush(target)
            if isinstance(item, Group):
                target.begin_group(item)
            elif isinstance(item, End):
                target.add_tasks([], item.last_id)
                self._make_way()
                target.activate(self.name, item.counters)
        return count

    def _make_way(self) -> None:
        """Drop an empty tube of the same name and options, which the import replaces."""
        there = self._empty_one()
        if there is not None:
            self._store.drop_tube(there)

    def _empty_one(self) -> Tube | None:
        """The tube with that name if it may be replaced; otherwise raises TubeExists or TubeMismatch."""
        there = _find(self._store, self.name)
        if there is None:
            return None
        header = self._reader.header
        if there.kind != header.kind or there.given != header.options:
            raise TubeMismatch(f"tube {self.name} exists with another kind or options: {_REMEDY}")
        if self._store.counters(there).counts.stored:
            raise TubeExists(f"tube {self.name} exists and is not empty: {_REMEDY}")
        return there

    def _flush(self, target: TubeImport) -> None:
        if self._records:
            target.add_tasks(self._records, self._records[-1].id)
        if self._outcomes:
            target.add_outcomes(self._outcomes)
        self._records, self._outcomes, self._bytes = [], [], 0


def _must_not_be_importing(store: Store, name: str, *, discard_partial: bool) -> None:
    left = load_tube(store, importing(name))
    if left is not None and discard_partial:
        discard(store, left)
    elif left is not None:
        raise BadValue(
            f"an import or move of tube {name} is running, or was interrupted: wait for it, continue the move, or "
            "import with --discard-partial, which removes what it left"
        )


def _find(store: Store, name: str) -> Tube | None:
    """The tube of that name, also if it is still being imported."""
    try:
        return load_tube(store, name)
    except NoSuchTube as error:
        if load_tube(store, importing(name)) is not None:
            return None
        raise NoSuchTube(f"{error}, or import under another name with --tube") from None
