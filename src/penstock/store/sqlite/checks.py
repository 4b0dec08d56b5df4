"""Cross-checks of everything stored in SQLite: what must not exist is found, told, and mended when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import apsw

from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record
from penstock.store.base import Effects, Finding
from penstock.store.sqlite import tubes
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.link_checks import check_links
from penstock.store.sqlite.step import Step, read_counts
from penstock.store.sqlite.unleased_checks import check_unleased


def check(db: apsw.Connection, now: int, *, repair: bool) -> list[Finding]:
    """All findings, in the order in which they must be mended: leases, links, lanes, counters."""
    problems = [problem for (problem,) in db.execute("PRAGMA quick_check(10)") if problem != "ok"]
    found = [Finding("", None, f"the file is damaged: {problem}", "restore a backup") for problem in problems]
    if found:
        return found  # what else it says cannot be trusted, and mending could lose more
    for tube in tubes.load_all(db):
        found += _orphans(db, tube, now, repair) if tube.kind.leased else check_unleased(db, tube, repair)
        found += check_links(db, tube, now, repair)
        if tube.kind.per_utube:
            found += _lanes(db, tube, repair)
        found += _counters(db, tube, repair)
    found += _waiting(db, repair)
    return found


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
        taken, heads, waiting = true.get(utube, (0, 0, 0))
        numbers, turn = stored.get(utube, ((0, 0, 0), 0))
        wanted = min(max(tube.utube_limit - taken, 0), heads + waiting)
        label = f"micro-queue {utube or '(none)'}"
        wrong = []
        if numbers != (taken, heads, waiting):
            wrong.append(f"{label} counts {numbers}, there are {(taken, heads, waiting)}")
        if heads != wanted or _misplaced(db, tube, utube, wanted):
            wrong.append(f"{label} must have its first {wanted} ready tasks takeable and has not")
        for what in wrong:
            yield Finding(tube.name, None, what, "set its heads and numbers anew")
        if repair and wrong:
            _set_lane(db, tube, utube, taken, wanted, turn)


def _misplaced(db: apsw.Connection, tube: Tube, utube: str, wanted: int) -> bool:
    order = _lane_order(db, tube, utube)
    return any((state == "r") != (place < wanted) for place, (_, state, *_) in enumerate(order))


def _lane_order(db: apsw.Connection, tube: Tube, utube: str) -> list[tuple[int, str, float, float]]:
    rows = list(db.execute(Q.lane_order, (tube.no, utube)))
    return rows if tube.fair else sorted(rows, key=lambda row: (row[2], row[3], row[0]))


def _set_lane(db: apsw.Connection, tube: Tube, utube: str, taken: int, wanted: int, turn: int) -> None:
    order = _lane_order(db, tube, utube)
    for place, (key, _, _, rank2) in enumerate(order):
        head = place < wanted
        if tube.fair:
            rank2 = turn if head else 0
        db.execute(Q.set_head, (key, "r" if head else "q", rank2))
    db.execute(Q.save_lane, (tube.no, utube, taken, min(wanted, len(order)), max(len(order) - wanted, 0), turn))


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
