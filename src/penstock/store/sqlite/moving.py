"""The store's calls by which tubes leave and arrive."""

from __future__ import annotations

from collections.abc import Mapping

import apsw
import msgspec

from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.options import Tube, encode_given
from penstock.core.task import Record
from penstock.store.base import Counts
from penstock.store.moving import (
    Kept,
    Parcel,
    Tally,
    erased_options,
    gone,
    is_sealed,
    seal_refused,
    sealed_options,
)
from penstock.store.refusals import name_in_use
from penstock.store.sqlite import tubes
from penstock.store.sqlite.calls import Calls
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.links import load_group
from penstock.store.sqlite.step import Step, counts_with, read_counts

_IDS = (1 << ID_BITS) - 1
# The counters that landing adds to; the others follow from the tasks that are there.
_CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")


class MovingCalls(Calls):
    """Keeps the contract of `store.moving`."""

    def seal_tube(self, tube: Tube, to: str) -> None:
        with self._db.durable as db:
            self._must_live(db, tube)
            leased = tube.kind.leased and db.execute(Q.any_taken, (tube.no,)).get
            if leased or db.execute(Q.any_following, (tube.no,)).get:
                raise seal_refused(tube, leased)
            given = encode_given(sealed_options(tube.given, to)).decode()
            db.execute(Q.seal_counter, (tube.no,))
            db.execute(Q.seal_tube, (tube.no, gone(tube.name), given))

    def erase_tube(self, tube: Tube) -> None:
        no, more = _content(tube), True
        while more:
            with self._db.durable as db:
                keys = [key for (key,) in db.execute(Q.page_keys, (*_span(tube), tubes.REMOVE_STEP))]
                more = bool(keys)
                if keys:
                    db.execute(Q.delete_range, (keys[0], keys[-1]))
                    continue
                for query in (Q.forget_lanes, Q.forget_waiting_tube, Q.forget_outcomes, Q.forget_groups):
                    db.execute(query, (no,))
                db.execute(Q.set_counts, (tube.no, 0, 0, 0, 0))
                if is_sealed(tube):
                    db.execute(Q.set_options, (tube.no, encode_given(erased_options(tube)).decode()))

    def load_sealed(self) -> list[Tube]:
        with self._db.reading as db:
            return [tubes.load(row) for row in db.execute(Q.sealed_tubes)]

    def forget_tube(self, tube: Tube) -> None:
        with self._db.durable as db:
            for query in (Q.forget_counter, Q.forget_tube):
                db.execute(query, (tube.no,))

    def tally(self, tube: Tube) -> Tally:
        with self._db.reading as db:
            mark = db.execute(Q.last_mark, (tube.no,)).fetchone() or (0, 0)
            counts = _counts(db, tube)
            return Tally(counts.put, mark, counts)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        with self._db.reading as db:
            low, high = _span(tube, after)
            return [Record(*row) for row in db.execute(Q.page, (low, high, limit))]

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        with self._db.reading as db:
            return [load_group(row) for row in db.execute(Q.read_groups, (_content(tube), after, limit))]

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        with self._db.reading as db:
            rows = list(db.execute(Q.read_outcomes, (*_span(tube, after), limit)))
            return [Kept(id, address, Ending(*ending), until) for id, address, *ending, until in rows]

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        with self._write(tube) as db:
            last = Step(db, tube, 0).last_id()
            new = parcel.above(last)
            db.executemany(Q.adopt, [_row(tube, record) for record in new.records])
            for no, count in new.members.items():
                db.execute(Q.adopt_members, (no, count))
            for kept in parcel.outcomes:
                key, ending = tube.no << ID_BITS | kept.id, msgspec.structs.astuple(kept.ending)
                db.execute(Q.adopt_outcome, (key, tube.no, kept.address, *ending, kept.until))
            last_id = max(parcel.upto, last, *(record.id for record in new.records))
            bumps = Counts(
                taken=new.count("t"), delayed=new.count("~", "g"), buried=new.count("!"), delay=-new.due,
                done=last_id - last - len(new.records),
            )  # fmt: skip
            _bump(db, tube, last_id, bumps)

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        with self._db.durable as db:
            self._must_live(db, tube)
            if db.execute(Q.get_tube, (name,)).get:
                raise name_in_use(name)
            _bump(db, tube, 0, Counts(**{call: getattr(tally.counts, call) for call in _CALLS}))
            mark = max(tuple(db.execute(Q.last_mark, (tube.no,)).get), tally.mark)
            db.execute(Q.set_last_mark, (tube.no, *mark))
            for no, total in totals.items():
                db.execute(Q.set_group_total, (no, total))
            db.execute(Q.rename_tube, (tube.no, name))


def _content(tube: Tube) -> int:
    """The number that its tasks have, also when it is sealed."""
    return abs(tube.no)


def _span(tube: Tube, after: int = 0) -> tuple[int, int]:
    """The keys of its tasks above an id: above the first of these, up to the second."""
    low = _content(tube) << ID_BITS
    return low | min(after, _IDS), low | _IDS


def _counts(db: apsw.Connection, tube: Tube) -> Counts:
    if tube.no > 0:
        return read_counts(Step(db, tube, 0))
    floor, newest = db.execute(Q.newest, (tube.no, _span(tube)[1] + 1)).get
    return counts_with(db, tube, max(floor, (newest or 0) - _span(tube)[0]))


def _bump(db: apsw.Connection, tube: Tube, last_id: int, by: Counts) -> None:
    numbers = (by.taken, by.delayed, by.buried, by.done, *(getattr(by, call) for call in _CALLS))
    db.execute(Q.bump, (tube.no, last_id, *numbers))


def _row(tube: Tube, record: Record) -> tuple[apsw.SQLiteValue, ...]:
    id, *fields = msgspec.structs.astuple(record)
    return (tube.no << ID_BITS | id, tube.no, *fields)
