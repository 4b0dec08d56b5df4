"""The store's calls by which tubes leave and arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pymysql

from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import DELIVER
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
from penstock.store.mysql import checks, faults, tubes
from penstock.store.mysql.calls import Calls
from penstock.store.mysql.linked import make_group
from penstock.store.mysql.pool import Link
from penstock.store.mysql.putting import packed
from penstock.store.mysql.queries import Q
from penstock.store.mysql.records import adopted_row, make_record
from penstock.store.refusals import name_in_use, tube_missing

_COLUMNS = (
    "tube, id, state, rank1, rank2, pri, utube, attempts, lease, created, taken, expires, at, ttr, max_attempts, "
    "reason, callback, data, address, reply_to, group_name, group_no"
)
_ADOPT = f"INSERT INTO penstock_task ({_COLUMNS}) VALUES "
_ADDRESS = "INSERT INTO penstock_address (tube, address, id) VALUES "
_MEMBER = "INSERT INTO penstock_member (group_no, id, waits, rank1, rank2) VALUES "
# Less its own number, that of a sealed tube's row of penstock_id.
_SEALED = 2**32 - 1
# The counters that landing adds to, in the order of `land_counts`.
_CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")


class MovingCalls(Calls):
    """Keeps the contract of `store.moving`."""

    def seal_tube(self, tube: Tube, to: str) -> None:
        given = encode_given(sealed_options(tube.given, to)).decode()

        def seal(link: Link) -> None:
            if not link.rows(Q.lock_tube, (tube.no,)):
                raise tube_missing(tube)
            leased = tube.kind.leased and bool(link.rows(Q.any_taken, (tube.no,)))
            if leased or link.rows(Q.any_following, (tube.no,)):
                raise seal_refused(tube, leased)
            link.change(Q.seal_id, (tube.no,))
            link.change(Q.seal_tube, (gone(tube.name), given, tube.no))
            link.change(Q.forget_waiting_tube, (tube.no,))

        with self._refusals(tube):
            self._db.run(seal)

    def erase_tube(self, tube: Tube) -> None:
        step = (tube.no, tubes.REMOVE_STEP)
        for query in (Q.erase_tasks, Q.erase_addresses, Q.forget_outcomes):
            while self._change(query, step) == tubes.REMOVE_STEP:
                pass
        for query in (Q.erase_members, Q.forget_groups, Q.forget_lanes):
            self._change(query, (tube.no,))
        if is_sealed(tube):
            self._change(Q.set_options, (encode_given(erased_options(tube)).decode(), tube.no))
            for query in (Q.forget_counter, Q.forget_deltas, Q.forget_serial):
                self._change(query, (tube.no,))
            self._change(Q.forget_id, (_SEALED - tube.no,))

    def load_sealed(self) -> list[Tube]:
        return [tubes.load(row) for row in self._db.read(Q.sealed_tubes)]

    def forget_tube(self, tube: Tube) -> None:
        self._change(Q.forget_tube, (tube.no,))

    def tally(self, tube: Tube) -> Tally:
        ((last, ms, seq, serial),) = self._db.read(Q.tally, (tube.no, tube.no, tube.no))
        counted = self._db.read(Q.counts % {"tube": tube.no})[0]
        counts = checks.make_counts(tube, (last, *counted[1:]))
        if tube.kind.hand_out == DELIVER:
            counts = msgspec.structs.replace(counts, take=max(counts.take, serial))
        return Tally(last, (ms, seq), counts)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        return [make_record(*row) for row in self._db.read(Q.read_tasks, (tube.no, after, limit))]

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        return [make_group(row) for row in self._db.read(Q.read_groups, (tube.no, after, limit))]

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        found = self._db.read(Q.read_outcomes, (tube.no, after, limit))
        return [Kept(id, address.decode(), Ending(*ending), until) for id, address, *ending, until in found]

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        with self._refusals(tube):
            self._db.run(lambda link: _adopt(link, tube, parcel), safe=True)

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        def land(link: Link) -> None:
            if not link.rows(Q.lock_tube, (tube.no,)):
                raise tube_missing(tube)
            _land(link, tube, name, tally, totals)

        with self._refusals(tube):
            self._db.run(land)

    def _change(self, query: str, values: tuple[object, ...]) -> int:
        return self._db.run(lambda link: link.change(query, values), safe=True)


def _adopt(link: Link, tube: Tube, parcel: Parcel) -> None:
    rows = link.rows(Q.lock_id, (tube.no,))
    if not rows:
        raise tube_missing(tube)
    last = int(rows[0][0])
    new = parcel.above(last)
    _insert(link, tube, _ADOPT, [adopted_row(tube, record) for record in new.records])
    named = [(tube.no, record.address, record.id) for record in new.records if record.address is not None]
    _insert(link, tube, _ADDRESS, [link.filled("(%s, %s, %s)", row) for row in named])
    members = [
        (record.group_no, record.id, int(record.state == "g"), record.rank1, record.rank2)
        for record in new.records
        if record.group_no is not None
    ]
    _insert(link, tube, _MEMBER, [link.filled("(%s, %s, %s, %s, %s)", row) for row in members])
    for no, count in new.members.items():
        link.change(Q.adopt_members, (count, count, no))
    for kept in parcel.outcomes:
        ending = msgspec.structs.astuple(kept.ending)
        link.change(Q.adopt_outcome, (tube.no, kept.id, kept.address, *ending, kept.until))
    last_id = max(last, parcel.upto, *(record.id for record in new.records))
    link.change(Q.set_last, (last_id, tube.no))
    done = last_id - last - len(new.records)
    numbers = (new.count("t"), new.count("~", "g"), new.count("!"), done, new.due)
    link.change(Q.adopt_counts, (*numbers, tube.no))


def _insert(link: Link, tube: Tube, insert: str, values: Sequence[str]) -> None:
    for chunk in packed(list(values), link.max_packet, tube) if values else ():
        link.packet(insert + ",".join(chunk))


def _land(link: Link, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
    try:
        link.change(Q.rename_tube, (name, tube.no))
    except pymysql.IntegrityError as error:
        if faults.number(error) != faults.DUPLICATE_KEY:
            raise
        raise name_in_use(name) from None
    counts: Counts = tally.counts
    link.change(Q.land_counts, (*(getattr(counts, call) for call in _CALLS), tube.no))
    if tube.kind.hand_out == DELIVER:
        link.change(Q.land_mark, (*tally.mark, tube.no, *tally.mark))
        link.change(Q.land_serial, (tube.no, counts.take))
    for no, total in totals.items():
        link.change(Q.set_group_total, (total, no))
