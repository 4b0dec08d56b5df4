"""The store's take, and what becomes of one whose answer was lost."""

from __future__ import annotations

from collections.abc import Sequence
from random import getrandbits

import msgspec

from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.errors import OutcomeUnknown
from penstock.store.base import Blocked, Event, Taken
from penstock.store.mysql.answers import moment_of, sql
from penstock.store.mysql.calls import Calls
from penstock.store.mysql.records import Report, make_record, shown
from penstock.store.mysql.wire import Rows
from penstock.store.sql.waiters import Waiter, Waiters

# Above every rank, for a take without max_pri.
_ANY_RANK = 1e300
# The procedures look at somewhat more tasks than are wanted, and count them by INT.
_MOST = 2**31 - 1_000
_BLOCKED = {None: 0, "enter": 1, "stay": 2, "leave": 3}


class _Asked(msgspec.Struct, frozen=True):
    """What a take asks for: the procedure and its first arguments, its moment, and who waits."""

    what: str
    now: str
    tubes: Sequence[Tube]
    handle: str
    blocked: Blocked
    waiter: Waiter


class TakingCalls(Calls):
    """Hands out tasks, each to somebody who learns of it."""

    _lost: list[tuple[Tube, _Asked, int, int]]  # takes without an answer, by tube: their numbers, those of who waits
    _waiters: Waiters

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None, blocked: Blocked = None,
        now: int | None = None,
    ) -> Taken:  # fmt: skip
        numbers = [tube.no for tube in tubes]
        waiter = self._waiters.find(handle, numbers, blocked)
        first = tubes[0]
        if len(tubes) == count == 1 and max_pri is None and first.kind.leased and not first.kind.per_utube:
            what = f"take_one({first.no}, '{handle}'"
        else:
            top = _ANY_RANK if max_pri is None else max_pri
            what = f"take('{numbers}', {min(count, _MOST)}, '{handle}', {top!r}"
        asked = _Asked(what, sql(self._moment(now)), tubes, handle, blocked, waiter)
        report = Report()
        with self._refusals(*tubes):
            rows = self._taken(asked, report)
        _, moment, wait_ms, session, *task = rows.pop()
        self._heard(int(moment))
        report.swept(rows, int(moment))
        taken = [(first.no, make_record(*task))] if task else shown(rows, "take")
        if blocked in ("enter", "stay") and not taken and session is not None:
            self._waiters.keep(handle, numbers, waiter)
        report.effects.events += [Event(no, "take", record) for no, record in taken]
        tube = next((tube for tube in tubes if taken and tube.no == taken[0][0]), None)
        return Taken(tube, [record for _, record in taken], wait_ms, session is not None, report.effects)

    def _taken(self, asked: _Asked, report: Report) -> Rows:
        """The rows of a take. When the connection breaks, what it may have done is undone, and it begins anew."""
        while True:
            self._undo_lost(report)
            number, waits = getrandbits(63), asked.waiter.number
            word = _BLOCKED[asked.waiter.word(asked.blocked)]
            try:
                return self._db.call(f"CALL penstock_{asked.what}, {word}, {waits}, {asked.now}, {number})")
            except OutcomeUnknown:
                self._lost += [(tube, asked, number, waits) for tube in asked.tubes]

    def _undo_lost(self, report: Report) -> None:
        """Undo takes whose answers were lost, so that no task is held by nobody, and nobody waits who does not."""
        while self._lost:
            lost = self._lost.pop()
            tube, asked, number, waits = lost
            what = f"{tube.no}, '{asked.handle}', {number}, {waits}, {sql(self._moment(None))}"
            try:
                rows = self._db.call(f"CALL penstock_give_back({what})", safe=True)
            except BaseException:
                self._lost.append(lost)
                raise
            asked.waiter.undo(waits)
            moment = moment_of(rows)
            report.swept(rows, moment)
            held = [record for _, record in shown(rows, "settle")]
            moves = [Move("release", record.id, record.owner, record.lease, unstarted=True) for record in held]
            report.settled(tube.no, moves, rows, moment)
