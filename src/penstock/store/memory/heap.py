"""A heap whose entries may be outdated: nothing is searched for on a change, the outdated is dropped when met."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Generic, TypeVar

# (rank1, rank2, id): a place in the order of takes.
Key = tuple[float, float, int]
K = TypeVar("K", Key, tuple[int, int], tuple[int, str])

# Outdated entries that are not worth a rebuild, also in each of 100,000 small heaps.
_SLACK = 8


class LazyHeap(Generic[K]):
    """Entries in order, as far as `valid` still says they are true. The same entry may be in it twice.

    What comes in order, as puts into a fifo do, is kept in a run whose first is popped in O(1): a heap of a
    million is slow to pop for no reason but the processor's cache.
    """

    __slots__ = ("_heap", "_run", "_valid")

    def __init__(self, valid: Callable[[K], bool]) -> None:
        self._valid: Callable[[K], bool] = valid
        self._run: deque[K] = deque()
        self._heap: list[K] = []

    def push(self, entry: K, live: int) -> None:
        """Add an entry. `live` is at least the number of valid ones: twice that, and the rest is swept out.

        The sweep comes before the push, because a new entry may become valid only after it.
        """
        if len(self._run) + len(self._heap) > 2 * live + _SLACK:
            self._run = deque(sorted(self.live()))
            self._heap = []
        if not self._run or entry >= self._run[-1]:
            self._run.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def first(self) -> K | None:
        """The smallest valid entry, or None."""
        run, heap, valid = self._run, self._heap, self._valid
        while run or heap:
            entry = heap[0] if not run or (heap and heap[0] < run[0]) else run[0]
            if valid(entry):
                return entry
            self.pop()
        return None

    def pop(self) -> None:
        """Remove what `first` answered."""
        if self._heap and (not self._run or self._heap[0] < self._run[0]):
            heapq.heappop(self._heap)
        else:
            self._run.popleft()

    def head(self, limit: int, bound: K | None = None) -> list[K]:
        """The first valid entries, each once, in order, up to a bound; they stay."""
        found: list[K] = []
        while len(found) < limit and (first := self.first()) is not None and (bound is None or first <= bound):
            if not found or first != found[-1]:
                found.append(first)
            self.pop()
        self._run.extendleft(reversed(found))  # none is above what is left
        return found

    def live(self) -> set[K]:
        """All valid entries."""
        return {entry for entries in (self._run, self._heap) for entry in entries if self._valid(entry)}

    def in_order(self) -> Iterator[K]:
        """The valid entries one after the other, each once."""
        rest = sorted(filter(self._valid, self._heap))
        return (entry for entry, _ in groupby(heapq.merge(filter(self._valid, self._run), rest)))
