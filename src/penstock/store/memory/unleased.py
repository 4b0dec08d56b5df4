"""The memory store's calls about kinds that lease nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store import base
from penstock.store.memory.calls import Calls
from penstock.store.memory.records import expired


class UnleasedCalls(Calls):
    """Keeps the contract of `store.unleased`."""

    def named(self, tube: Tube, names: Sequence[str], *, now: int | None = None) -> list[Record | None]:
        with self._lock:
            state, moment = self._state(tube), self._time(now)
            found = [state.links.of(name) for name in names]
            return [None if record is None or expired(record, moment) else record for record in found]

    def recover(self, tube: Tube, count: int, elapsed: int, *, now: int | None = None) -> base.Settled:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            old: list[Record] = []
            while len(old) < count and not state.paused and (first := state.delivered.first()) is not None:
                record = state.records[first[2]]
                if (record.taken or 0) + elapsed > step.now:
                    break
                state.delivered.pop()
                old.append(record)
            return base.Settled([state.deliver(record, step) for record in old], self._effects(step))

    def inspect(self, tube: Tube, start: int, count: int, *, pending: bool) -> list[Record]:
        with self._lock:
            state = self._state(tube)
            total = state.counts["taken" if pending else "ready"]
            start = start + total if start < 0 else start
            if not 0 <= start < total:
                return []
            keys = (state.delivered if pending else state.ready).in_order(from_end=2 * start > total)
            if 2 * start > total:
                found = list(islice(keys, max(0, total - start - count), total - start))[::-1]
            else:
                found = list(islice(keys, start, start + count))
            return [state.records[key[2]] for key in found]
