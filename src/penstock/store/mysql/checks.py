"""Cross-checks of everything stored in MySQL: what must not exist is found, told, and mended when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.core.options import Tube
from penstock.core.soundness import stranded
from penstock.core.task import UNSTARTED, Record
from penstock.store.base import Counts, Finding
from penstock.store.mysql import tubes
from penstock.store.mysql.link_checks import check_links
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q
from penstock.store.mysql.records import make_record
from penstock.store.mysql.unleased_checks import check_unleased
from penstock.store.refusals import tube_missing
from penstock.store.sql.lane_checks import EMPTY, make_lane


def check(link: Link, now: int, *, repair: bool) -> list[Finding]:
    """All findings, in the order in which they must be mended: states, leases, links, lanes, counters."""
    found: list[Finding] = []
    for tube in [tubes.load(row) for row in link.rows(Q.all_tubes)]:
        if tube.kind.leased:
            found += [*_stranded(link, tube, repair), *_orphans(link, tube, now, repair)]
        else:
            found += check_unleased(link, tube, repair)
        found += check_links(link, tube, now, repair)
        found += _astray(link, tube, repair)
        if tube.kind.per_utube:
            found += _lanes(link, tube, repair)
        found += _counters(link, tube, repair)
    found += _waiting(link, repair)
    if repair:
        link.packet(f"CALL penstock_put_works({now})")
    return found


def read_counts(link: Link, tube: Tube) -> Counts:
    """A tube's counters; NoSuchTube when it is gone."""
    return make_counts(tube, link.rows(Q.counts % {"tube": tube.no})[0])


def make_counts(tube: Tube, row: tuple[int | None, ...]) -> Counts:
    """The counters of a row of `counts`: what was put is the last id, what is ready is what is left of it."""
    if row[0] is None:
        raise tube_missing(tube)
    last, taken, delayed, buried, done, *calls = (int(number or 0) for number in row)
    return Counts(last - taken - delayed - buried - done, taken, delayed, buried, done, last, *calls)


def _stranded(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    for id, state in link.rows(Q.stranded, (tube.no,)):
        yield Finding(tube.name, id, stranded(state), "make it ready")
        if repair:
            link.change(Q.make_ready, (tube.no, id))


def _orphans(link: Link, tube: Tube, now: int, repair: bool) -> Iterator[Finding]:
    records: list[Record] = [make_record(*row) for row in link.rows(Q.orphans, (tube.no,))]
    for record in records:
        yield Finding(tube.name, record.id, "taken, but no live session holds it", "release it")
    if repair and records:
        ids = str([record.id for record in records])
        link.packet(link.filled("CALL penstock_sweep(%s, 'release', %s, NULL, %s)", (tube.no, ids, now)))


def _astray(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    rows = link.rows(Q.astray, (tube.no,))
    for id, state, lane_state in rows:
        what = f"in state {state}, but stands as {lane_state} in the index of micro-queues"
        yield Finding(tube.name, id, what, "set it anew")
    if repair and rows:
        link.change(Q.mend_lane_states, (tube.no,))


def _lanes(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    stored = {utube: (tuple(numbers), turn) for utube, *numbers, turn in link.rows(Q.stored_lanes, (tube.no,))}
    true = {utube: tuple(numbers) for utube, *numbers in link.rows(Q.true_lanes, (tube.no,))}
    for utube in true.keys() | stored.keys():
        places = link.rows(Q.lane_order, (tube.no, utube))
        lane = make_lane(tube, true.get(utube, EMPTY), stored.get(utube, (EMPTY, 0)), places)
        faults = lane.faults(utube.decode())
        for what in faults:
            yield Finding(tube.name, None, what, "set its heads and numbers anew")
        if repair and faults:
            for id, state, rank2 in lane.mended():
                link.change(Q.set_head, (state, state, rank2, tube.no, id))
            link.change(Q.save_lane, (tube.no, utube, *lane.numbers(), lane.turn))


def _counters(link: Link, tube: Tube, repair: bool) -> Iterator[Finding]:
    counts = read_counts(link, tube)
    states: Counter[str] = Counter(dict(link.rows(Q.recount, (tube.no,))))
    true = {"taken": states["t"], "delayed": states["~"] + states[UNSTARTED], "buried": states["!"]}
    true["done"] = counts.put - states.total()  # as many are gone as were put and are not there
    off = {name: number - int(getattr(counts, name)) for name, number in true.items()}
    for name, by in off.items():
        if by:
            what = f"the counter {name} says {getattr(counts, name)}, and it should be {true[name]}"
            yield Finding(tube.name, None, what, f"set it to {true[name]}")
    if repair and any(off.values()):
        link.change(Q.correct, (tube.no, *off.values()))


def _waiting(link: Link, repair: bool) -> Iterator[Finding]:
    for handle, name in link.rows(Q.stray_waiting):
        yield Finding((name or b"").decode(), None, f"handle {handle.decode()} waits here and is gone", "forget it")
        if repair:
            link.change(Q.forget_waiting_handle, (handle,))
