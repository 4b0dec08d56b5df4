"""The store's calls about kinds that lease nothing."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import Effects, Settled
from penstock.store.sqlite import handouts
from penstock.store.sqlite.calls import Calls
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.looking import unless_expired
from penstock.store.sqlite.step import read_counts


class UnleasedCalls(Calls):
    """Keeps the contract of `store.unleased`."""

    def named(self, tube: Tube, names: Sequence[str], *, now: int | None = None) -> list[Record | None]:
        with self._db.reading as db:
            self._must_live(db, tube)
            rows = [db.execute(Q.by_address, (tube.no, name)).get for name in names]
            moment = self._clock() if now is None else now
            return [unless_expired(row, moment) for row in rows]

    def recover(self, tube: Tube, count: int, elapsed: int, *, now: int | None = None) -> Settled:
        with self._write(tube) as db:
            step = self._step(db, tube, self._clock() if now is None else now, Effects())
            return Settled(list(handouts.recover(step, count, elapsed)), step.finish())

    def inspect(self, tube: Tube, start: int, count: int, *, pending: bool) -> list[Record]:
        with self._db.reading as db:
            step = self._step(db, tube, 0, Effects())
            counts = read_counts(step)
            return handouts.inspect(step, start, count, counts.taken if pending else counts.ready, pending=pending)
