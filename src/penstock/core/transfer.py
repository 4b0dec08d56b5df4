"""Moving a tube to another store, and export and import: the values that are transferred, and the hidden names.

A tube is imported under a hidden name (`importing`), so that no taker finds it, and gets its own name in one step when
it is complete. A tube that was moved away is frozen: its name becomes `moved`, and its row says where it went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from penstock.core.ending import Ending
from penstock.core.ids import Mark
from penstock.core.options import Tube
from penstock.core.results import Counts, MicroQueue
from penstock.core.shards import home_of, shard_of
from penstock.core.task import Record
from penstock.errors import NoSuchTube, TubeBusy

# group number -> (tasks ever put, tasks that failed)
GroupTotals = Mapping[int, tuple[int, int]]
# Tasks per step: many per commit, without blocking the store for long.
MOVE_STEP = 1000
# No name given by a caller can start with these.
_IMPORTING, _MOVED, _DROPPED, _INTERNAL = "<", ">", "!", "."
# Options of hidden tubes: where a frozen tube went; that its tasks are erased; the former name of a dropped tube; that
# an importing tube must be paused when it is complete.
_MOVED_TO, _ERASED, _NAMED, _PAUSES = "moved", "erased", "named", "pauses"
# The change of options that removes `pauses`.
NO_PAUSE_DUE = {_PAUSES: None}


class StoredOutcome(msgspec.Struct, frozen=True):
    """An outcome and the time until which it is kept."""

    id: int
    address: str
    ending: Ending
    until: int


class TubeCounters(msgspec.Struct, frozen=True):
    """The last ids and the counters of a tube and of some of its micro-queues, and whether it is paused.

    In a reliable tube, `counts.take` is at least the serial number of the last delivery. `waits`: seconds since the
    oldest ready task was put or last taken, 0 if none is ready or the tube is `round`; read only for several tubes at
    once. It is an estimate from two tasks, the next one to be taken and the first of the least urgent priority: a task
    between them may be older.
    """

    last_id: int
    mark: Mark
    counts: Counts
    paused: bool = False
    micro_queues: Sequence[MicroQueue] = ()
    waits: float = 0.0


class ImportBatch(msgspec.Struct, frozen=True):
    """Tasks in id order, and outcomes, to be imported. With the batches before it, it has all tasks up to id `upto`.

    No task is leased. In micro-queue kinds, ready tasks come as delayed ones (`~`) whose delay is over; `advance` then
    makes them ready. `group_no` is the number in the new store.
    """

    records: Sequence[Record] = ()
    upto: int = 0
    outcomes: Sequence[StoredOutcome] = ()

    @property
    def due(self) -> int:
        """The number of delayed tasks that were ready before the export: their delays must not be counted as ended."""
        return sum(stands_for_ready(record) for record in self.records)

    def count(self, *states: str) -> int:
        """The number of tasks in one of these states."""
        return sum(record.state in states for record in self.records)

    def split(self, tube: Tube, shards: int) -> list[ImportBatch]:
        """The part of the batch for each shard of a tube."""
        per_utube = tube.kind.per_utube
        records: list[list[Record]] = [[] for _ in range(shards)]
        outcomes: list[list[StoredOutcome]] = [[] for _ in range(shards)]
        for record in self.records:
            records[home_of(record, per_utube, shards, record.id - 1)].append(record)
        for kept in self.outcomes:
            # With micro-queues, an address is looked up in all shards.
            home = (kept.id - 1) % shards if per_utube else shard_of(kept.address, shards)
            outcomes[home].append(kept)
        return [ImportBatch(own, self.upto, ends) for own, ends in zip(records, outcomes, strict=True)]

    @property
    def members(self) -> dict[int, int]:
        """The number of tasks per group."""
        found: dict[int, int] = {}
        for record in self.records:
            if record.group_no is not None:
                found[record.group_no] = found.get(record.group_no, 0) + 1
        return found

    def above(self, last_id: int) -> ImportBatch:
        """The batch without tasks that are already stored."""
        return replace(self, records=[record for record in self.records if record.id > last_id])


def importing(name: str) -> str:
    """The hidden name of a tube while it is being imported."""
    return _IMPORTING + name


def moved(name: str) -> str:
    """The hidden name of a tube that was moved away."""
    return _MOVED + name


def internal(name: str) -> str:
    """The name of a tube that penstock itself uses."""
    return _INTERNAL + name


def is_importing(name: str) -> bool:
    """Whether the name is that of a tube that is being imported."""
    return name.startswith(_IMPORTING)


def is_hidden(name: str) -> bool:
    """Whether the name is that of a hidden tube: imported, moved, dropped, or used by penstock itself."""
    return name.startswith((_IMPORTING, _MOVED, _DROPPED, _INTERNAL))


def plain_name(name: str) -> str:
    """The public name of a tube, also of a hidden one."""
    return name.lstrip(_IMPORTING + _MOVED)


def frozen_options(given: Mapping[str, object], to: str) -> dict[str, object]:
    """The options of a tube that was moved."""
    return {**given, _MOVED_TO: to}


def moved_to(tube: Tube) -> str:
    """The URL of the store that a frozen tube was moved to."""
    return str(tube.given[_MOVED_TO])


def is_frozen(tube: Tube) -> bool:
    """Whether the tube is frozen, because it is moving or was moved to another store."""
    return _MOVED_TO in tube.given


def erased_options(tube: Tube) -> dict[str, object]:
    """The options of a frozen tube whose tasks are erased."""
    return {**tube.given, _ERASED: True}


def is_erased(tube: Tube) -> bool:
    """Whether all tasks of a frozen tube are erased."""
    return _ERASED in tube.given


def dropped(tube: Tube) -> str:
    """The hidden name of a dropped tube while its tasks are removed."""
    return f"{_DROPPED}{tube.no}"


def dropped_options(tube: Tube) -> dict[str, object]:
    """The options of a dropped tube."""
    return {**tube.given, _NAMED: tube.name}


def is_dropped(tube: Tube) -> bool:
    """Whether the tube was dropped."""
    return tube.name.startswith(_DROPPED)


def dropped_name(tube: Tube) -> str:
    """The former name of a dropped tube."""
    return str(tube.given[_NAMED])


def importing_options(given: Mapping[str, object], *, paused: bool) -> dict[str, object]:
    """The options of an importing tube; with `paused`, they note from its creation on that it must be paused."""
    return {**given, _PAUSES: True} if paused else dict(given)


def pause_is_due(tube: Tube) -> bool:
    """Whether an importing tube must be paused when it is complete."""
    return _PAUSES in tube.given


def own_options(tube: Tube) -> dict[str, object]:
    """The tube's own options, without those of a frozen or an importing one."""
    return {option: value for option, value in tube.given.items() if option not in (_MOVED_TO, _ERASED, _PAUSES)}


def hidden(tube: Tube) -> NoSuchTube:
    """The error for opening a tube that is being imported or was moved away."""
    name = plain_name(tube.name)
    if is_frozen(tube):
        return NoSuchTube(f"tube {name} has moved to {moved_to(tube)}: connect there")
    return NoSuchTube(f"tube {name} is being imported into this store: wait until penstock move or import has finished")


def named(found: Sequence[Tube], name: str) -> Tube | None:
    """The tube of that name among those found; NoSuchTube if only a hidden one has it, None if none does."""
    if not found:
        return None
    if found[0].name != name:
        raise hidden(found[0])
    return found[0]


def freeze_refused(tube: Tube, leased: object) -> TubeBusy:
    """The error for freezing a tube that has leased tasks or groups in progress."""
    what = "has taken tasks" if leased else "has groups that are being started or cancelled"
    return TubeBusy(f"tube {tube.name} {what}: wait until they are settled")


def stands_for_ready(record: Record) -> bool:
    """Whether an imported delayed task was ready before the export: its delay ended when it was put."""
    return record.state == "~" and record.at is not None and record.at <= record.created
