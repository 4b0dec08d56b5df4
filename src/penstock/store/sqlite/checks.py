"""Cross-checks of everything stored in SQLite: what must not exist is found, told, and mended when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import apsw

from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.soundness import stranded
from penstock.core.task import UNSTARTED, Record
from penstock.store.base import Effects, Finding
from penstock.store.sql.lane_checks import EMPTY, make_lane
from penstock.store.sqlite import tubes
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.link_checks import check_links
from penstock.store.sqlite.step import Step, read_counts
from penstock.store.sqlite.unleased_checks import check_unleased


def check(db: apsw.Connection, now: int, *, repair: bool) -> list[Finding]:
    """All findings, in the order in which they must be mended: states, leases, links, lanes, counters."""
    problems = [problem for (problem,) in db.execute("PRAGMA quick_check(10)") if problem != "ok"]
    found = [Finding("", None, f"the file is damaged: {problem}", "restore a backup") for problem in problems]
    if found:
        return found  # what else it says cannot be trusted, and mending could lose more
    for tube in tubes.load_all(db):
        if tube.kind.leased:
            found += [*_stranded(db, tube, repair), *_orphans(db, tube, now, repair)]
        else:
            found += check_unleased(db, tube, repair)
        found += check_links(db, tube, now, repair)
        if tube.kind.per_utube:
            found += _lanes(db, tube, repair)
        found += _counters(db, tube, repair)
    found += _waiting(db, repair)
    return found


def _stranded(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    for row in list(db.execute(Q.stranded, (tube.no,))):
        record = Record(*row)
        yield Finding(tube.name, record.id, stranded(record.state), "make it ready")
        if repair:
            db.execute(Q.make_ready, (tube.no << ID_BITS | record.id,))


def _orphans(db: apsw.Connection, tube: Tube, now: int, repair: bool) -> Iterator[Finding]:
    records = [Record(*row) for row in db.execute(Q.orphans, (tube.no,))]
    for record in records:
        yield Finding(tube.name, record.id, "taken, but no live session holds it", "release it")
    if repair and records:
        step = Step(db, tube, now, Effects())
        for record in records:
            step.apply(record, came_back(record, now, "release"))
        step.finish()


def _lanes(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    true = {utube: tuple(numbers) for utube, *numbers in db.execute(Q.true_lanes, (tube.no,))}
    stored = {utube: (tuple(numbers), turn) for utube, *numbers, turn in db.execute(Q.stored_lanes, (tube.no,))}
    for utube in true.keys() | stored.keys():
        places = db.execute(Q.lane_order, (tube.no, utube))
        lane = make_lane(tube, true.get(utube, EMPTY), stored.get(utube, (EMPTY, 0)), places)
        faults = lane.faults(utube)
        for what in faults:
            yield Finding(tube.name, None, what, "set its heads and numbers anew")
        if repair and faults:
            db.executemany(Q.set_head, lane.mended())
            db.execute(Q.save_lane, (tube.no, utube, *lane.numbers(), lane.turn))


def _counters(db: apsw.Connection, tube: Tube, repair: bool) -> Iterator[Finding]:
    counts = read_counts(Step(db, tube, 0))
    states: Counter[str] = Counter(dict(db.execute(Q.recount, (tube.no,))))
    true = {"taken": states["t"], "delayed": states["~"] + states[UNSTARTED], "buried": states["!"]}
    true["done"] = counts.put - states.total()  # as many are gone as were put and are not there
    wrong = {name: number for name, number in true.items() if getattr(counts, name) != number}
    for name, number in wrong.items():
        what = f"the counter {name} says {getattr(counts, name)}, and it should be {number}"
        yield Finding(tube.name, None, what, f"set it to {number}")
    if repair and wrong:
        db.execute(Q.set_counts, (tube.no, *true.values()))


def _waiting(db: apsw.Connection, repair: bool) -> Iterator[Finding]:
    for handle, no in list(db.execute(Q.stray_waiting)):
        row = db.execute(Q.tube_by_no, (no,)).get
        name = tubes.load(row).name if row else ""
        yield Finding(name, None, f"handle {handle} waits here and is gone", "forget it")
        if repair:
            db.execute(Q.forget_waiting_handle, (handle,))
