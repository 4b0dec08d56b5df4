"""The memory store's calls by which tubes leave and arrive."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from msgspec.structs import replace

from penstock.core.group import OVER, Group
from penstock.core.options import Tube, make_tube
from penstock.core.task import Record
from penstock.store.base import Counts
from penstock.store.memory.calls import Calls
from penstock.store.memory.tube import TubeState
from penstock.store.moving import (
    Kept,
    Parcel,
    Tally,
    erased_options,
    gone,
    is_sealed,
    seal_refused,
    sealed_options,
)
from penstock.store.refusals import name_in_use

# What a tube has now; the others are what was ever done.
_NOW = ("ready", "taken", "delayed", "buried")


class MovingCalls(Calls):
    """Keeps the contract of `store.moving`."""

    def seal_tube(self, tube: Tube, to: str) -> None:
        with self._lock:
            state = self._state(tube)
            leased = state.counts["taken"] if tube.kind.leased else 0
            if leased or state.links.groups.moving:
                raise seal_refused(tube, leased)
            del self._tubes[tube.no]
            self._rename(state, gone(tube.name), sealed_options(tube.given, to))

    def erase_tube(self, tube: Tube) -> None:
        with self._lock:
            if is_sealed(tube):
                tube = make_tube(tube.no, tube.name, tube.kind, erased_options(tube))
            self._by_name[tube.name] = TubeState(tube, self._sessions.held)
            if tube.no in self._tubes:
                self._tubes[tube.no] = self._by_name[tube.name]

    def load_sealed(self) -> list[Tube]:
        with self._lock:
            return [self._by_name[name].tube for name in sorted(self._by_name) if is_sealed(self._by_name[name].tube)]

    def forget_tube(self, tube: Tube) -> None:
        with self._lock:
            self._by_name.pop(tube.name, None)

    def tally(self, tube: Tube) -> Tally:
        with self._lock:
            state = self._content(tube)
            return Tally(state.last_id, state.naming.last, Counts(**state.counts))

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        with self._lock:
            records = self._content(tube).records
            return [replace(records[id]) for id in islice((id for id in records if id > after), limit)]

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        with self._lock:
            groups = self._content(tube).links.groups.by_no
            found = (groups[no] for no in sorted(groups) if no > after and groups[no].state not in OVER)
            return [replace(group) for group in islice(found, limit)]

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        with self._lock:
            return self._content(tube).links.outcomes.read(after, limit)

    def adopt(self, tube: Tube, parcel: Parcel) -> None:
        with self._lock:
            state, step = self._state(tube), self._step(None)
            for kept in parcel.outcomes:
                state.links.outcomes.keep(kept.id, kept.address, kept.ending, kept.until)
            new = parcel.above(state.last_id)
            for record in new.records:
                state.adopt(record, step)
            state.skip_to(parcel.upto)
            state.counts["delay"] -= new.due

    def land_tube(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> None:
        with self._lock:
            state = self._state(tube)
            if name in self._by_name:
                raise name_in_use(name)
            state.naming.last = max(state.naming.last, tally.mark)
            for call in Counts.__struct_fields__:
                if call not in (*_NOW, "done", "put"):
                    state.counts[call] += getattr(tally.counts, call)
            for no, total in totals.items():
                state.links.groups.by_no[no].total = total
            self._rename(state, name, tube.given)

    def _content(self, tube: Tube) -> TubeState:
        """The tube, also when it is sealed."""
        sealed = self._by_name.get(tube.name)
        return sealed if sealed is not None and sealed.tube.no == tube.no else self._state(tube)

    def _rename(self, state: TubeState, name: str, given: dict[str, object]) -> None:
        old = state.tube
        del self._by_name[old.name]
        state.rename(make_tube(old.no, name, old.kind, given))
        self._by_name[name] = state
