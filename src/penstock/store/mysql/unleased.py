"""The store's calls about kinds that lease nothing."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import Effects, Event, Settled
from penstock.store.mysql import records
from penstock.store.mysql.answers import sql
from penstock.store.mysql.calls import Calls
from penstock.store.mysql.queries import Q, several

# What is read is of one moment, while others go on writing.
ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"


class UnleasedCalls(Calls):
    """Keeps the contract of `store.unleased`."""

    def named(self, tube: Tube, names: Sequence[str], *, now: int | None = None) -> list[Record | None]:
        if not names:
            return []
        moment = self.now() if now is None else now
        rows = self._db.read(several(Q.named, len(names)), (tube.no, *names))
        if not rows and not self._db.read(Q.last_id, (tube.no,)):
            raise self._no_such_tube(tube)
        found: list[Record] = [records.make_record(*row) for row in rows]
        there = {record.address: record for record in found if not records.expired(record, moment)}
        return [there.get(name) for name in names]

    def recover(self, tube: Tube, count: int, elapsed: int, *, now: int | None = None) -> Settled:
        with self._refusals(tube):
            rows = self._db.call(f"CALL penstock_recover({tube.no}, {count}, {elapsed}, {sql(self._moment(now))})")
        recovered = [record for _, record in records.shown(rows, "take")]
        return Settled(list(recovered), Effects([Event(tube.no, "take", record) for record in recovered]))

    def inspect(self, tube: Tube, start: int, count: int, *, pending: bool) -> list[Record]:
        with self._refusals(tube):
            rows = self._db.call(
                f"{ONE_MOMENT}; CALL penstock_inspect({tube.no}, {start}, {count}, {pending})", safe=True
            )
        return [record for _, record in records.shown(rows, "listed")]
