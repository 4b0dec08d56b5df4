"""How the addressed tasks of one tube ended, by id and by address, until their time is over."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.ending import Ending
from penstock.store.memory.heap import LazyHeap, pop_due
from penstock.store.moving import Kept


class _Kept(Struct):
    ending: Ending
    address: str
    until: int


class Outcomes:
    """An address leads to its last outcome; those before it are found by id alone."""

    __slots__ = ("_ends", "_kept", "_last")

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._last: dict[str, int] = {}
        self._ends: LazyHeap[tuple[int, int]] = LazyHeap(self._ends_then)

    def keep(self, id: int, address: str, ending: Ending, until: int) -> None:
        """A task of that address ended so."""
        self._kept[id] = _Kept(ending, address, until)
        self._last[address] = id
        self._ends.push((until, id), len(self._kept))

    def supersede(self, address: str, until: int) -> None:
        """The address was put again: its last outcome goes at that moment, if not sooner."""
        id = self._last.get(address)
        if id is not None and self._kept[id].until > until:
            self._kept[id].until = until
            self._ends.push((until, id), len(self._kept))

    def of(self, id: int, now: int) -> Ending | None:
        """How the task with that id ended."""
        kept = self._kept.get(id)
        return None if kept is None or kept.until <= now else kept.ending

    def last(self, address: str, now: int) -> Ending | None:
        """How the last task of that address ended."""
        id = self._last.get(address)
        return None if id is None else self.of(id, now)

    def read(self, after: int, limit: int) -> list[Kept]:
        """Those of tasks above an id, in id order."""
        ids = sorted(id for id in self._kept if id > after)[:limit]
        found = ((id, self._kept[id]) for id in ids)
        return [Kept(id, kept.address, kept.ending, kept.until) for id, kept in found]

    def sweep(self, now: int, limit: int) -> None:
        """Forget some whose time is over."""
        for id in pop_due(self._ends, now, limit):
            kept = self._kept.pop(id)
            if self._last.get(kept.address) == id:
                del self._last[kept.address]

    def _ends_then(self, entry: tuple[int, int]) -> bool:
        kept = self._kept.get(entry[1])
        return kept is not None and kept.until == entry[0]
