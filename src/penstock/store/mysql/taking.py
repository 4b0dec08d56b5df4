"""The store's take, and what becomes of one whose answer was lost."""

from __future__ import annotations

from collections.abc import Sequence
from random import getrandbits

from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.errors import OutcomeUnknown
from penstock.store.base import Blocked, Event, Taken
from penstock.store.mysql.answers import moment_of, sql
from penstock.store.mysql.calls import Calls
from penstock.store.mysql.pool import Rows
from penstock.store.mysql.records import Report, shown

# Above every rank, for a take without max_pri.
_ANY_RANK = 1e300
_BLOCKED = {None: 0, "enter": 1, "stay": 2, "leave": 3}


class TakingCalls(Calls):
    """Hands out tasks, each to somebody who learns of it."""

    _lost: list[tuple[Tube, str, int]]  # takes without an answer, by tube: handle and number of the take

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None, blocked: Blocked = None,
        now: int | None = None,
    ) -> Taken:  # fmt: skip
        numbers = ",".join(str(tube.no) for tube in tubes)
        top = _ANY_RANK if max_pri is None else max_pri
        how = f"{count}, '{handle}', {top!r}, {_BLOCKED[blocked]}, {sql(self._moment(now))}"
        report = Report()
        with self._refusals(*tubes):
            rows = self._taken(tubes, handle, f"'[{numbers}]', {how}", report)
        _, moment, wait_ms, session = rows[-1]
        self._heard(int(moment))
        report.swept(rows[:-1], int(moment))
        taken = shown(rows, "take")
        report.effects.events += [Event(no, "take", record) for no, record in taken]
        tube = next((tube for tube in tubes if taken and tube.no == taken[0][0]), None)
        return Taken(tube, [record for _, record in taken], wait_ms, session is not None, report.effects)

    def _taken(self, tubes: Sequence[Tube], handle: str, asked: str, report: Report) -> Rows:
        """The rows of a take. When the connection breaks, what it may have leased is given back, and it begins anew."""
        while True:
            self._give_back_lost(report)
            number = getrandbits(63)
            try:
                return self._db.call(f"CALL penstock_take({asked}, {number})")
            except OutcomeUnknown:
                self._lost += [(tube, handle, number) for tube in tubes if tube.kind.leased]

    def _give_back_lost(self, report: Report) -> None:
        """Release what takes have leased whose answers were lost, so that no task is held by nobody."""
        while self._lost:
            lost = self._lost.pop()
            tube, handle, number = lost
            try:
                call = f"CALL penstock_give_back({tube.no}, '{handle}', {number}, {sql(self._moment(None))})"
                rows = self._db.call(call, safe=True)
            except BaseException:
                self._lost.append(lost)
                raise
            moment = moment_of(rows)
            report.swept(rows, moment)
            held = [record for _, record in shown(rows, "settle")]
            moves = [Move("release", record.id, record.owner, record.lease, unstarted=True) for record in held]
            report.settled(tube.no, moves, rows, moment)
