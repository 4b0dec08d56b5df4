"""Sessions: who takes tasks, through which handles, and what happens when they go.

A session lives while it has a handle that has not lapsed, and `ttr` longer. Then what it held is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from penstock.core.lifecycle import came_back, lost
from penstock.core.results import ADVANCE_STEP, Effects, Joined, Presence, lapsed
from penstock.engine.lapse import LAPSE_MS
from penstock.engine.port import Step
from penstock.engine.work import Work


def join(step: Step, presence: Presence, session: str | None, ttr: int) -> Joined:
    """Begin a session, or join the live one of that id; NotFound when it is unknown or has lapsed."""
    if session is None:
        id = str(uuid4())
        no = step.add_session(id, ttr)
    else:
        found = step.find_session(id=session)
        if found is None or found.end <= step.now:
            raise lapsed(session)
        no, id = found.no, found.id
    step.add_handle(presence, no, step.now + LAPSE_MS)
    return Joined(no, id)


def leave(step: Step, handles: Sequence[str], locus: str | None, effects: Effects) -> None:
    """End these handles; with `locus`, only those that joined from there, whose process is dead."""
    end_lapsed(step, effects)  # what lapsed before ended then, not now
    for handle in step.handles(handles):
        if locus in (None, handle.locus):
            step.remove_handle(handle, step.now)
    end_lapsed(step, effects, dead=locus is not None)


def end_lapsed(step: Step, effects: Effects, *, dead: bool = True) -> None:
    """End the handles whose heartbeat lapsed, then the sessions whose time is over; their tasks are released. What a
    dead session held has an error more."""
    handles, ended = step.lapsed()
    for handle in handles:
        step.remove_handle(handle, handle.until)
    if handles:
        ended = step.lapsed()[1]
    for session in ended:
        while held := step.held(session, ADVANCE_STEP):
            for tube, loaded in held:
                work = Work(step, tube, effects)
                for record in work.know(loaded):
                    work.change(record, (lost if dead else came_back)(record, step.now, "release"))
                    if work.heavy:
                        work.flush()
                work.flush()
            if sum(len(loaded.records) for _, loaded in held) < ADVANCE_STEP:
                break
        step.forget_session(session)
