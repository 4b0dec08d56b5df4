"""Cross-checks of tubes of unleased kinds in MySQL, and repair."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.soundness import mended, needed_mark
from penstock.store.base import Finding
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q
from penstock.store.mysql.records import make_record


def check_unleased(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    """Findings that come before those of the counters."""
    clocked = int(tube.kind.hand_out == CLOCK)
    for row in link.rows(Q.unsound, (tube.no, clocked, clocked)):
        record = make_record(*row)
        wrong = mended(tube, record)
        if wrong is not None:
            yield Finding(tube.name, record.address, wrong[0], "put it right")
            if repair:
                link.change(Q.mend, (wrong[1].state, wrong[1].rank1, tube.no, record.id))
    if tube.kind.hand_out == DELIVER:
        yield from _last_mark(link, tube, repair)
        yield from _last_serial(link, tube, repair)


def _last_mark(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    last = link.rows(Q.last_mark, (tube.no,))[0]
    newest = next((make_record(*row) for row in link.rows(Q.newest_record, (tube.no,))), None)
    mark = needed_mark(last, newest)
    if mark is not None:
        what = f"the last id is kept as {shown_mark(last)}, there is {shown_mark(mark)}"
        yield Finding(tube.name, None, what, "keep the newest")
        if repair:
            link.change(Q.set_last_mark, (*mark, tube.no))


def _last_serial(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    kept, found = link.rows(Q.serials, (tube.no, tube.no))[0]
    if found > kept:
        what = f"the last hand-out is kept as number {kept}, there is number {found:.0f}"
        yield Finding(tube.name, None, what, "keep the last")
        if repair:
            link.change(Q.set_serial, (tube.no, found))
