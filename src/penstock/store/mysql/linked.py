"""The store's calls about addresses, outcomes, replies and groups."""

from __future__ import annotations

from collections.abc import Sequence

from pymysql.converters import escape_string

from penstock.core.ending import Ending, Sought
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import Entry
from penstock.store.base import Advanced, Event, Stored
from penstock.store.mysql.answers import sql
from penstock.store.mysql.calls import Calls
from penstock.store.mysql.database import Refused
from penstock.store.mysql.queries import Q
from penstock.store.mysql.records import Report
from penstock.store.mysql.ties import TiedPut
from penstock.store.mysql.wire import Rows


class LinkedCalls(Calls):
    """Keeps the contract of `store.linked`."""

    def seek(self, tube: Tube, address: str, *, now: int | None = None) -> Sought:
        moment = self.now() if now is None else now
        return self._sought(tube, self._db.read(Q.seek, (tube.no, tube.no, address, tube.no, address, moment)))

    def sought(self, tube: Tube, id: int, *, now: int | None = None) -> Sought:
        moment = self.now() if now is None else now
        return self._sought(tube, self._db.read(Q.sought, (tube.no, tube.no, id, tube.no, id, moment)))

    def _sought(self, tube: Tube, rows: Rows) -> Sought:
        """The rows of a live tube, of the live task, and of an outcome, where there are such."""
        if not rows or rows[0][0] is None:
            raise self._no_such_tube(tube)
        if len(rows) == 1:
            return Sought()
        _, id, *ending = rows[1]
        return Sought(id) if id is not None else Sought(ending=Ending(*ending))

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        with self._refusals(tube):
            rows = self._db.call(f"CALL penstock_open_group({tube.no}, '{escape_string(name)}')", safe=True)
        return make_group(rows[0])

    def get_group(self, tube: Tube, no: int, *, now: int | None = None) -> Group | None:
        rows = self._db.read(Q.group, (no, self.now() if now is None else now, tube.no))
        if not rows:
            raise self._no_such_tube(tube)
        return None if rows[0][1] is None else make_group(rows[0][1:])

    def live_groups(self, tube: Tube, after: str, limit: int) -> list[Group]:
        return [make_group(row) for row in self._db.read(Q.live_groups, (tube.no, after.encode(), limit))]

    def set_group_work(
        self, tube: Tube, no: int, *, end: bytes | None = None, cancel: bytes | None = None, now: int | None = None
    ) -> bool:
        with self._refusals(tube):
            rows = self._db.call(f"CALL penstock_set_work({tube.no}, {no}, {_data(end)}, {_data(cancel)})", safe=True)
        return bool(rows[0][0])

    def turn_group(self, tube: Tube, no: int, to: str, *, now: int | None = None) -> Advanced:
        moment = sql(self._moment(now))
        turn = f"CALL penstock_turn({tube.no}, {no}, '{to}', {sql(tube.capacity)}, {moment})"
        with self._refusals(tube, 1):
            rows = self._db.run(
                lambda link: link.finish_each(turn, f"CALL penstock_turned({tube.no}, {moment})"), committed=True
            )
        report = Report()
        report.swept(rows, int(rows[-1][1]))
        more = bool(rows[-1][3])
        return Advanced(more, 0 if more else None, report.effects)

    def _put_tied(self, tube: Tube, entries: Sequence[Entry], now: int | None) -> Stored:
        put = TiedPut(tube, entries, self._moment(now))
        try:
            with self._refusals(tube, len(put)):
                answers = self._db.run(put.put, committed=True)
        except Refused as refused:
            raise put.refused(refused) from None
        report = Report()
        for answer in answers:
            report.swept(answer.before, answer.moment)
            changed = answer.fresh + answer.replaced
            report.effects.events += [Event(tube.no, "put", record) for record in changed]
            report.swept(answer.after, self._heard(answer.moment))
        found = [record for answer in answers for record in answer.found]
        return Stored([found[place] for place in put.places], report.effects)


def make_group(row: tuple[int, bytes, str, int, int, bytes | None, bytes | None, int, int | None]) -> Group:
    """The group of a stored row."""
    no, name, state, total, left, end, cancel, moving, until = row
    return Group(no, name.decode(), state, total, left, end, cancel, bool(moving), until)


def _data(data: bytes | None) -> str:
    return "NULL" if data is None else f"X'{data.hex()}'"
