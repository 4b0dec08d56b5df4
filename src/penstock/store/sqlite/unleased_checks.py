"""Cross-checks of tubes of unleased kinds in SQLite, and repair."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from penstock.core.ids import shown_mark
from penstock.core.kind import DELIVER
from penstock.core.options import Tube
from penstock.core.soundness import mended, needed_mark
from penstock.core.task import Record
from penstock.store.base import Finding
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q


def check_unleased(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    """Findings that come before those of the counters."""
    newest = None
    first = tube.no << ID_BITS
    for row in list(db.execute(Q.page, (first, first | (1 << ID_BITS) - 1, -1))):
        newest = Record(*row)
        wrong = mended(tube, newest)
        if wrong is not None:
            yield Finding(tube.name, newest.address, wrong[0], "put it right")
            if repair:
                fixed = wrong[1]
                db.execute(Q.mend, (first | fixed.id, fixed.state, fixed.rank1, fixed.owner))
    if tube.kind.hand_out == DELIVER:
        yield from _last_mark(db, tube, newest, repair)


def _last_mark(db: apsw.Connection, tube: Tube, newest: Record | None, repair: bool) -> Iterator[Finding]:
    last = db.execute(Q.last_mark, (tube.no,)).get
    mark = needed_mark(last, newest)
    if mark is not None:
        what = f"the last id is kept as {shown_mark(last)}, there is {shown_mark(mark)}"
        yield Finding(tube.name, None, what, "keep the newest")
        if repair:
            db.execute(Q.set_last_mark, (tube.no, *mark))
