"""The store's calls about addresses, outcomes and groups."""

from __future__ import annotations

from penstock.core import group as groups
from penstock.core.ending import Sought
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.store.base import Advanced, Effects
from penstock.store.sqlite import following, links
from penstock.store.sqlite.calls import Calls
from penstock.store.sqlite.lanes import Q


class LinkedCalls(Calls):
    """Keeps the contract of `store.linked`."""

    def seek(self, tube: Tube, address: str, *, now: int | None = None) -> Sought:
        with self._db.reading as db:
            self._must_live(db, tube)
            return links.seek(db, tube, address, self._clock() if now is None else now)

    def sought(self, tube: Tube, id: int, *, now: int | None = None) -> Sought:
        with self._db.reading as db:
            found = links.sought(db, tube, id, self._clock() if now is None else now)
            if found.ending is None:
                self._must_live(db, tube)
            return found

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        with self._write(tube) as db:
            return self._step(db, tube, self._clock() if now is None else now, Effects()).links.open(name)

    def get_group(self, tube: Tube, no: int, *, now: int | None = None) -> Group | None:
        with self._db.reading as db:
            return self._step(db, tube, self._clock() if now is None else now, Effects()).links.group(no)

    def live_groups(self, tube: Tube, after: str, limit: int) -> list[Group]:
        with self._db.reading as db:
            self._must_live(db, tube)
            return [links.load_group(row) for row in db.execute(Q.live_groups, (tube.no, after, limit))]

    def set_group_work(
        self, tube: Tube, no: int, *, end: bytes | None = None, cancel: bytes | None = None, now: int | None = None
    ) -> bool:
        with self._write(tube) as db:
            step = self._step(db, tube, self._clock() if now is None else now, Effects())
            group = step.links.group(no)
            if group is None or group.state not in groups.LIVE:
                return False
            group.end = group.end if end is None else end
            group.cancel = group.cancel if cancel is None else cancel
            step.links.changed(group)
            step.finish()
            return True

    def turn_group(self, tube: Tube, no: int, to: str, *, now: int | None = None) -> Advanced:
        with self._write(tube) as db:
            step = self._step(db, tube, self._clock() if now is None else now, Effects())
            more = following.turn(step, no, to)
            return Advanced(more, 0 if more else None, step.finish())
