"""The store's calls about kinds that lease nothing."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import Settled
from penstock.store.postgres import rows
from penstock.store.postgres.calls import Calls
from penstock.store.postgres.connection import Row


class UnleasedCalls(Calls):
    """Keeps the contract of `store.unleased`."""

    def _settle_named(self, tube: Tube, moves: Sequence[Move], now: int | None) -> list[Row]:
        names = [move.name for move in moves]
        if rows.named_acks(moves):
            return self._call(tube, self._ask.ack_named, (tube.no, names, self._teller.name))
        values = (tube.no, [move.verb for move in moves], names, self._time(now), self._teller.name)
        return self._call(tube, self._ask.settle_named, values)

    def named(self, tube: Tube, names: Sequence[str], *, now: int | None = None) -> list[Record | None]:
        found = self._call(tube, self._ask.named, (tube.no, list(names), self._time(now)), twice=True)
        there = {record.address: record for record in map(rows.record, found)}
        return [there.get(name) for name in names]

    def recover(self, tube: Tube, count: int, elapsed: int, *, now: int | None = None) -> Settled:
        gathered = self._gather(self._call(tube, self._ask.recover, (tube.no, count, elapsed, self._time(now))))
        return Settled([record for _, record in gathered.placed], gathered.effects)

    def inspect(self, tube: Tube, start: int, count: int, *, pending: bool) -> list[Record]:
        values = (tube.no, start, count, pending)
        return [rows.record(row) for row in self._call(tube, self._ask.inspect, values, twice=True)]
