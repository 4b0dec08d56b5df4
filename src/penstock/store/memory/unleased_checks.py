"""Cross-checks of tubes of unleased kinds in memory; and repair, which leaves counters and indexes to be built anew."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.ids import shown_mark
from penstock.core.kind import DELIVER
from penstock.core.soundness import mended, needed_mark
from penstock.store.base import Finding
from penstock.store.memory.tube import TubeState


def check_unleased(state: TubeState, repair: bool) -> Iterator[Finding]:
    """Findings that come before those of counters and indexes."""
    if state.tube.kind.leased:
        return
    for record in list(state.records.values()):
        wrong = mended(state.tube, record)
        if wrong is not None:
            yield Finding(state.tube.name, record.address, wrong[0], "repair puts it right")
            if repair:
                state.records[record.id] = wrong[1]
    if state.tube.kind.hand_out == DELIVER:
        yield from _last_mark(state, repair)


def _last_mark(state: TubeState, repair: bool) -> Iterator[Finding]:
    mark = needed_mark(state.naming.last, next(reversed(state.records.values()), None))
    if mark is not None:
        what = f"the last id is kept as {shown_mark(state.naming.last)}, there is {shown_mark(mark)}"
        yield Finding(state.tube.name, None, what, "repair keeps the newest")
        if repair:
            state.naming.last = mark
