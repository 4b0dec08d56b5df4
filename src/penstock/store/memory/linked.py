"""The memory store's calls about addresses, outcomes and groups."""

from __future__ import annotations

from copy import copy

from penstock.core import group as groups
from penstock.core.ending import Sought
from penstock.core.group import Group
from penstock.core.options import Tube
from penstock.store import base
from penstock.store.memory.calls import Calls
from penstock.store.memory.following import turn


class LinkedCalls(Calls):
    """Keeps the contract of `store.linked`."""

    def seek(self, tube: Tube, address: str, *, now: int | None = None) -> Sought:
        with self._lock:
            return self._state(tube).links.seek(address, self._time(now))

    def sought(self, tube: Tube, id: int, *, now: int | None = None) -> Sought:
        with self._lock:
            return self._state(tube).links.sought(id, self._time(now))

    def open_group(self, tube: Tube, name: str, *, now: int | None = None) -> Group:
        with self._lock:
            return copy(self._state(tube).links.groups.open(name))

    def get_group(self, tube: Tube, no: int, *, now: int | None = None) -> Group | None:
        with self._lock:
            return copy(self._state(tube).links.groups.get(no, self._time(now)))

    def live_groups(self, tube: Tube, after: str, limit: int) -> list[Group]:
        with self._lock:
            groups = self._state(tube).links.groups
            names = sorted(name for name in groups.live if name > after)
            return [copy(groups.by_no[groups.live[name]]) for name in names[:limit]]

    def set_group_work(
        self, tube: Tube, no: int, *, end: bytes | None = None, cancel: bytes | None = None, now: int | None = None
    ) -> bool:
        with self._lock:
            group = self._state(tube).links.groups.get(no, self._time(now))
            if group is None or group.state not in groups.LIVE:
                return False
            group.end = group.end if end is None else end
            group.cancel = group.cancel if cancel is None else cancel
            return True

    def turn_group(self, tube: Tube, no: int, to: str, *, now: int | None = None) -> base.Advanced:
        with self._lock:
            state, step = self._state(tube), self._step(now)
            group = state.links.groups.get(no, step.now)
            more = group is not None and turn(state, group, to, step)
            return base.Advanced(more, self._wait_ms([state], step.now), self._effects(step))
