"""A heap whose entries may be outdated: nothing is searched for on a change, the outdated is dropped when met."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

# (rank1, rank2, id): a place in the order of takes.
Key = tuple[float, float, int]
K = TypeVar("K", Key, tuple[int, int], tuple[int, str])

# Outdated entries that are not worth a rebuild, also in each of 100,000 small heaps.
_SLACK = 8


class LazyHeap(Generic[K]):
    """Entries in order, as far as `valid` still says they are true. The same entry may stand in it twice."""

    __slots__ = ("_valid", "entries")

    def __init__(self, valid: Callable[[K], bool]) -> None:
        self._valid: Callable[[K], bool] = valid
        self.entries: list[K] = []

    def push(self, entry: K, live: int) -> None:
        """Add an entry. `live` is at least the number of valid ones: twice that, and the rest is swept out.

        The sweep comes before the push, because a new entry may become valid only after it.
        """
        if len(self.entries) > 2 * live + _SLACK:
            self.entries = list(self.live())
            heapq.heapify(self.entries)
        heapq.heappush(self.entries, entry)

    def first(self) -> K | None:
        """The smallest valid entry, or None."""
        entries = self.entries
        while entries:
            if self._valid(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def pop(self) -> None:
        """Remove what `first` answered."""
        heapq.heappop(self.entries)

    def live(self) -> set[K]:
        """All valid entries."""
        return {entry for entry in self.entries if self._valid(entry)}

    def below(self, bound: K) -> Iterator[K]:
        """The valid entries smaller than bound, in no order; looks only at what is smaller."""
        entries = self.entries
        ahead = [0]
        while ahead:
            place = ahead.pop()
            if place < len(entries) and entries[place] < bound:
                ahead += (2 * place + 1, 2 * place + 2)
                if self._valid(entries[place]):
                    yield entries[place]
