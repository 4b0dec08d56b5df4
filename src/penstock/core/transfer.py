"""A tube on its way from one store to another, or into a file and out of it: the values that travel, and names.

A tube is imported under a name that nobody can give (`importing`), so that no taker finds it, and is activated
under its own in one step. One that leaves is frozen: its name becomes `moved`, and its row says where the tube went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from penstock.core.ending import Ending
from penstock.core.ids import Mark
from penstock.core.options import Tube
from penstock.core.results import Counts
from penstock.core.task import Record
from penstock.errors import NoSuchTube, TubeBusy

# Of each group by its number: how many tasks it ever had, and how many of them failed.
GroupTotals = Mapping[int, tuple[int, int]]
# Tasks in one step: a commit for many, and no store is held up for long.
MOVE_STEP = 1000
# No name that people give begins with these.
_IMPORTING, _MOVED, _DROPPED = "<", ">", "!"
# Among the options of a frozen tube: where it went; and that nothing of it is left. Of a dropped one: its name.
_MOVED_TO, _ERASED, _NAMED = "moved", "erased", "named"


class Kept(msgspec.Struct, frozen=True):
    """An outcome that is kept until a moment."""

    id: int
    address: str
    ending: Ending
    until: int


class TubeCounters(msgspec.Struct, frozen=True):
    """What a tube knows beside its tasks: the last ids, and its counters.

    In a tube that delivers, `counts.take` is at least the serial of the last delivery.
    """

    last_id: int
    mark: Mark
    counts: Counts


class ImportBatch(msgspec.Struct, frozen=True):
    """Tasks, in the order of their ids, and outcomes on their way in. It has all tasks with ids up to `upto` that the
    batches before it had not.

    None is taken by a session; in micro-queue kinds none is ready, but `~` with its time over, which `advance` sees to.
    `group_no` is that of the new store.
    """

    records: Sequence[Record] = ()
    upto: int = 0
    outcomes: Sequence[Kept] = ()

    @property
    def due(self) -> int:
        """How many stand for ready ones: when they become so, that is no delay that ends, and is not counted as one."""
        return sum(stands_for_ready(record) for record in self.records)

    def count(self, *states: str) -> int:
        """How many tasks are in one of these states."""
        return sum(record.state in states for record in self.records)

    @property
    def members(self) -> dict[int, int]:
        """How many tasks each group gets."""
        found: dict[int, int] = {}
        for record in self.records:
            if record.group_no is not None:
                found[record.group_no] = found.get(record.group_no, 0) + 1
        return found

    def above(self, last_id: int) -> ImportBatch:
        """Without the tasks that are there."""
        return replace(self, records=[record for record in self.records if record.id > last_id])


def importing(name: str) -> str:
    """What a tube is called until all of it is there."""
    return _IMPORTING + name


def moved(name: str) -> str:
    """What a tube is called that was moved away."""
    return _MOVED + name


def is_importing(name: str) -> bool:
    """Whether that is what a tube is called before all of it is there."""
    return name.startswith(_IMPORTING)


def is_hidden(name: str) -> bool:
    """Whether a stored name is none that people see."""
    return name.startswith((_IMPORTING, _MOVED, _DROPPED))


def plain_name(name: str) -> str:
    """The name that people know, of a hidden one too."""
    return name.lstrip(_IMPORTING + _MOVED)


def frozen_options(given: Mapping[str, object], to: str) -> dict[str, object]:
    """The options of a tube that was moved."""
    return {**given, _MOVED_TO: to}


def moved_to(tube: Tube) -> str:
    """Where a frozen tube went."""
    return str(tube.given[_MOVED_TO])


def is_frozen(tube: Tube) -> bool:
    """Whether it was moved away."""
    return _MOVED_TO in tube.given


def erased_options(tube: Tube) -> dict[str, object]:
    """The options of a frozen tube of which nothing is left."""
    return {**tube.given, _ERASED: True}


def is_erased(tube: Tube) -> bool:
    """Whether nothing of a frozen tube is left."""
    return _ERASED in tube.given


def dropped(tube: Tube) -> str:
    """What a dropped tube is called while its tasks are removed."""
    return f"{_DROPPED}{tube.no}"


def dropped_options(tube: Tube) -> dict[str, object]:
    """The options of a dropped tube."""
    return {**tube.given, _NAMED: tube.name}


def is_dropped(tube: Tube) -> bool:
    """Whether it was dropped."""
    return tube.name.startswith(_DROPPED)


def dropped_name(tube: Tube) -> str:
    """The name that a dropped tube had."""
    return str(tube.given[_NAMED])


def own_options(tube: Tube) -> dict[str, object]:
    """The options that a tube was created with, also when it is frozen."""
    return {option: value for option, value in tube.given.items() if option not in (_MOVED_TO, _ERASED)}


def hidden(tube: Tube) -> NoSuchTube:
    """The error of whoever asks for a tube that is imported or moved away."""
    name = plain_name(tube.name)
    if is_frozen(tube):
        return NoSuchTube(f"tube {name} has moved to {moved_to(tube)}: connect there")
    return NoSuchTube(f"tube {name} is on its way into this store: wait until penstock move or import has finished")


def named(found: Sequence[Tube], name: str) -> Tube | None:
    """Of tubes that have a name, or hide behind it, the one that has it; NoSuchTube where it hides, None: none does."""
    if not found:
        return None
    if found[0].name != name:
        raise hidden(found[0])
    return found[0]


def freeze_refused(tube: Tube, leased: object) -> TubeBusy:
    """The error of whoever would freeze a tube that is not at rest."""
    what = "has taken tasks" if leased else "has groups whose tasks follow a start or a cancel"
    return TubeBusy(f"tube {tube.name} {what}: wait until they are settled")


def stands_for_ready(record: Record) -> bool:
    """Whether an imported task was ready: its delay is over since it was put."""
    return record.state == "~" and record.at is not None and record.at <= record.created
