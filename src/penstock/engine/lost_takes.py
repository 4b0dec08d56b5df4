"""Takes whose answers did not come: what they leased is given back, although the session lives on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from penstock.core.lease import call_of
from penstock.core.lifecycle import undone
from penstock.core.options import Tube
from penstock.core.results import Effects
from penstock.core.task import Record
from penstock.engine.port import Step
from penstock.engine.work import Work

# A request may reach its server after we looked for what it did: heartbeats keep looking for this long.
LOOK_SECONDS = 60.0


class LostTake(msgspec.Struct):
    """A take that may have been done."""

    tubes: Sequence[Tube]
    handle: str
    call: int
    since: float = msgspec.field(default_factory=time.monotonic)
    looked: bool = False


class LostTakes:
    """Those of one store in this process, by call."""

    def __init__(self) -> None:
        self._takes: dict[int, LostTake] = {}

    def add(self, lost: LostTake) -> None:
        """Remember a take whose answer did not come."""
        self._takes[lost.call] = lost

    def left(self, *, again: bool) -> list[LostTake]:
        """Those that were not looked for yet; with `again`, all that may still arrive."""
        return [lost for lost in list(self._takes.values()) if again or not lost.looked] if self._takes else []

    def looked(self, lost: LostTake) -> None:
        """Note that what it did was given back."""
        lost.looked = True
        if time.monotonic() - lost.since > LOOK_SECONDS:
            self._takes.pop(lost.call, None)

    def leased(self, record: Record) -> bool:
        """Whether one of them leased this task."""
        return record.state == "t" and call_of(record.lease) in self._takes

    def __bool__(self) -> bool:
        return bool(self._takes)


def give_back(step: Step, tube: Tube, records: Iterable[Record], effects: Effects) -> None:
    """Undo the leases of these tasks."""
    work = Work(step, tube, effects)
    for record in records:
        work.change(record, undone(record, step.now))
    work.flush()
