"""The store's calls about addresses, outcomes and groups."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.ending import Sought
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.core.task import Entry
from penstock.store.base import ADVANCE_STEP, Advanced, Stored
from penstock.store.postgres import rows
from penstock.store.postgres.calls import Calls
from penstock.store.postgres.connection import Row
from penstock.store.postgres.listener import PROCESS


class LinkedCalls(Calls):
    """Keeps the contract of `store.linked`."""

    def _put_linked(self, tube: Tube, entries: Sequence[Entry], now: int | None) -> Stored:
        values = (tube.no, *rows.put_rows(entries), self._time(now), self._teller.name)
        gathered = self._gather(self._call(tube, self._ask.put_linked, values))
        tasks = dict(gathered.placed)
        return Stored([tasks[place] for place in range(len(entries))], gathered.effects)

    def seek(self, tube: Tube, address: str, *, now: int | None = None) -> Sought:
        return self._sought(tube, (tube.no, address, None, self._time(now), None))

    def sought(self, tube: Tube, id: int, *, now: int | None = None) -> Sought:
        return self._sought(tube, (tube.no, None, id, self._time(now), self._watcher))

    def _sought(self, tube: Tube, values: tuple[object, ...]) -> Sought:
        (row,) = self._call(tube, self._ask.sought, values, twice=True)
        self._note_watch(row)
        return rows.sought(row)

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        (row,) = self._call(tube, self._ask.open_group, (tube.no, name), twice=True)
        return rows.group(row)

    def get_group(self, tube: Tube, no: int, *, now: int | None = None) -> Group | None:
        found = self._call(tube, self._ask.get_group, (tube.no, no, self._time(now), self._watcher), twice=True)
        if not found:
            return None
        self._note_watch(found[0])
        return rows.group(found[0][1:])

    def live_groups(self, tube: Tube, after: str, limit: int) -> list[Group]:
        return [rows.group(row) for row in self._call(tube, self._ask.live_groups, (tube.no, after, limit), twice=True)]

    def set_group_work(
        self, tube: Tube, no: int, *, end: bytes | None = None, cancel: bytes | None = None, now: int | None = None
    ) -> bool:
        return bool(self._call(tube, self._ask.set_group_work, (tube.no, no, end, cancel), twice=True)[0][0])

    def turn_group(self, tube: Tube, no: int, to: str, *, now: int | None = None) -> Advanced:
        values = (tube.no, no, to, ADVANCE_STEP, self._time(now), self._teller.name)
        *found, last = self._call(tube, self._ask.turn_group, values, twice=True)
        more = last[2] == "more"
        return Advanced(more, 0 if more else None, self._gather(found).effects)

    @property
    def _watcher(self) -> str | None:
        """The process that is told of ends from now on, while it looks for one now and then; None where none can be."""
        return PROCESS.name if self._listener is not None else None

    def _note_watch(self, row: Row) -> None:
        """What was under way when this process said that it waits may not have seen that: it looks once more."""
        if row[0] and self._listener is not None:
            self._listener.look_again()
