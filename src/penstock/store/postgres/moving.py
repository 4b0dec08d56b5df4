"""The store's calls by which tubes leave and arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import DELIVER
from penstock.core.options import Tube, encode_given
from penstock.core.task import Record
from penstock.store.base import ADVANCE_STEP, Counts
from penstock.store.moving import Kept, Parcel, Tally, erased_options, gone, is_sealed, sealed_options
from penstock.store.postgres import rows
from penstock.store.postgres.calls import Calls
from penstock.store.refusals import name_in_use

_ID_BITS = 40
# What of a record goes apart from its JSON.
_APART = ("payload", "owner", "progress")


class MovingCalls(Calls):
    """Keeps the contract of `store.moving`."""

    def seal_tube(self, tube: Tube, to: str) -> None:
        given = encode_given(sealed_options(tube.given, to)).decode()
        self._call(tube, self._ask.seal, (tube.no, gone(tube.name), given, self._teller.name))

    def erase_tube(self, tube: Tube) -> None:
        erased = encode_given(erased_options(tube)).decode() if is_sealed(tube) else None
        while self._read(self._ask.erase, (tube.no, ADVANCE_STEP, erased))[0][0]:
            pass

    def load_sealed(self) -> list[Tube]:
        return [rows.tube(row) for row in self._read(self._ask.sealed_tubes, ())]

    def forget_tube(self, tube: Tube) -> None:
        self._read(self._ask.forget_sealed, (tube.no,))

    def tally(self, tube: Tube) -> Tally:
        ((last_id, ms, seq, serial),) = cast("Any", self._read(self._ask.tally, (tube.no,)))
        ((_, *numbers),) = cast("Any", self._read(self._ask.sum, (tube.no,)))
        counts = Counts(*(number or 0 for number in numbers))
        if tube.kind.hand_out == DELIVER:
            counts = msgspec.structs.replace(counts, take=max(counts.take, serial))
        return Tally(last_id, (ms, seq), counts)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        return [rows.record(row) for row in self._read(self._ask.read_tasks, (tube.no, _span(tube, after)[0], limit))]

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        return [rows.group(row) for row in self._read(self._ask.read_groups, (tube.no, after, limit))]

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        found = cast("Any", self._read(self._ask.read_outcomes, (*_span(tube, after), limit)))
        return [Kept(id, address, Ending(*ending), until) for id, address, *ending, until in found]

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        tasks = [_task_row(place, record) for place, record in enumerate(parcel.records, 1)]
        outcomes = [_outcome_row(place, kept) for place, kept in enumerate(parcel.outcomes, 1)]
        values = (
            tube.no, _json(tasks), [record.payload for record in parcel.records], _json(outcomes),
            [kept.ending.result for kept in parcel.outcomes], parcel.upto,
        )  # fmt: skip
        self._call(tube, self._ask.adopt, values, twice=True)

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        values = (tube.no, name, _json(tally.counts), *tally.mark, _json(dict(totals)))
        if not self._call(tube, self._ask.land, values)[0][0]:
            raise name_in_use(name)


def _span(tube: Tube, after: int) -> tuple[int, int]:
    """The keys of its tasks above an id: above the first of these, up to the second."""
    return tube.no << _ID_BITS | after, (tube.no + 1 << _ID_BITS) - 1


def _task_row(place: int, record: Record) -> dict[str, object]:
    fields = msgspec.structs.asdict(record)
    return {"place": place} | {name: value for name, value in fields.items() if name not in _APART}


def _outcome_row(place: int, kept: Kept) -> dict[str, object]:
    ending = kept.ending
    return {
        "place": place, "id": kept.id, "address": kept.address, "status": ending.status, "error": ending.error,
        "code": ending.code, "until": kept.until,
    }  # fmt: skip


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
