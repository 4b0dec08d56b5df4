"""Cross-checks of tubes of unleased kinds in SQLite, and repair."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.soundness import mended, needed_mark
from penstock.core.task import Record
from penstock.store.base import Finding
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q


def check_unleased(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    """Findings that come before those of the counters."""
    for row in list(db.execute(Q.unsound, (tube.no, tube.kind.hand_out == CLOCK))):
        record = Record(*row)
        wrong = mended(tube, record)
        if wrong is not None:
            yield Finding(tube.name, record.address, wrong[0], "put it right")
            if repair:
                fixed = wrong[1]
                db.execute(Q.mend, (tube.no << ID_BITS | fixed.id, fixed.state, fixed.rank1, fixed.owner))
    if tube.kind.hand_out == DELIVER:
        yield from _last_mark(db, tube, repair)


def _last_mark(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    last = db.execute(Q.last_mark, (tube.no,)).get
    newest = db.execute(Q.newest_record, (tube.no << ID_BITS, (tube.no + 1) << ID_BITS)).get
    mark = needed_mark(last, newest and Record(*newest))
    if mark is not None:
        what = f"the last id is kept as {shown_mark(last)}, there is {shown_mark(mark)}"
        yield Finding(tube.name, None, what, "keep the newest")
        if repair:
            db.execute(Q.set_last_mark, (tube.no, *mark))
