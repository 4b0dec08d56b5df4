"""Sessions: how they begin and end, their handles, and what happens to their tasks.

A session lives while it has a handle that has not lapsed, and for `ttr` after that. Then its tasks are released. A take
whose answer was lost is undone, even while its session is alive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from penstock.core.lease import call_of
from penstock.core.lifecycle import came_back, lost, undone
from penstock.core.results import ADVANCE_STEP, Effects
from penstock.core.task import Record
from penstock.core.values import lapse_ms
from penstock.engine.port import LostTake, Step
from penstock.engine.work import Work
from penstock.errors import BadValue

_VARIABLE = "PENSTOCK_LAPSE"
# Seconds. A request may reach its server after we searched for its leases, so each heartbeat searches again for this
# long.
LOOK_SECONDS = 60.0


def read_lapse() -> int:
    """Read PENSTOCK_LAPSE (seconds). Returns it in milliseconds; raises BadValue if it is invalid."""
    return lapse_ms(_VARIABLE, os.environ.get(_VARIABLE))


#: A session of this process lapses after this time without a heartbeat. The variable is read once, at import.
LAPSE_MS = lapse_ms(_VARIABLE, None)
with suppress(BadValue):  # `connect` raises it again, where the program can handle it
    LAPSE_MS = read_lapse()


def leave(step: Step, handles: Sequence[str], locus: str | None, effects: Effects) -> None:
    """End these handles. With `locus`, end only handles with that locus; their processes are dead."""
    end_lapsed(step, effects)  # handles that lapsed earlier end as of that time, not now
    step.end_handles(handles, locus)
    end_lapsed(step, effects, dead=locus is not None)


def end_lapsed(step: Step, effects: Effects, *, dead: bool = True) -> None:
    """End lapsed handles, then sessions past their end time, and release their tasks. With `dead`, the tasks get one
    more error."""
    end = lost if dead else came_back
    for session in step.ended_sessions():
        while held := step.held(session, ADVANCE_STEP):
            for tube, loaded in held:
                work = Work(step, tube, effects)
                work.change_each(work.remember(loaded), lambda record: end(record, step.now, "release"))
            if sum(len(loaded.records) for _, loaded in held) < ADVANCE_STEP:
                break
        step.forget_session(session)


class LostTakes(dict[int, LostTake]):
    """The lost takes of one store in this process, by call."""

    def pending(self, *, again: bool) -> list[LostTake]:
        """Return the takes that were not undone yet; with `again`, also those that may still reach the server."""
        return [lost for lost in list(self.values()) if again or not lost.looked] if self else []

    def undo(self, step: Step, effects: Effects, *, again: bool) -> None:
        """Release the tasks leased by these takes, without counting the attempt. Forgets takes that are old enough."""
        for take in self.pending(again=again):
            for tube, records in zip(take.tubes, step.leased_by(take), strict=True):
                Work(step, tube, effects).change_each(records, lambda record: undone(record, step.now))
            take.looked = True
            if time.monotonic() - take.since > LOOK_SECONDS:
                self.pop(take.call, None)

    def leased(self, record: Record) -> bool:
        """Return whether one of the lost takes leased this task."""
        return record.state == "t" and call_of(record.lease) in self
