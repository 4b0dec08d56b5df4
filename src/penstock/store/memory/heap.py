"""A heap whose entries may be outdated: nothing is searched for on a change, the outdated is dropped when met."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby, takewhile
from typing import Generic, TypeVar

# (rank1, rank2, id): a place in the order of takes.
Key = tuple[float, float, int]
K = TypeVar("K", Key, tuple[int, int], tuple[int, str])

# Outdated entries that are not worth a rebuild, also in each of 100,000 small heaps.
_SLACK = 8


class LazyHeap(Generic[K]):
    """Entries in order, as far as `valid` still says they are true. The same entry may stand in it twice.

    What comes in order, as puts into a fifo do, stands in a run whose first is popped in O(1): a heap of a
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
        while (entry := self._smallest()) is not None:
            if self._valid(entry):
                return entry
            self.pop()
        return None

    def pop(self) -> None:
        """Remove what `first` answered."""
        if self._heap and (not self._run or self._heap[0] < self._run[0]):
            heapq.heappop(self._heap)
        else:
            self._run.popleft()

    def live(self) -> set[K]:
        """All valid entries."""
        return {entry for entries in (self._run, self._heap) for entry in entries if self._valid(entry)}

    def in_order(self, *, from_end: bool = False) -> Iterator[K]:
        """The valid entries one after the other, each once."""
        run = filter(self._valid, reversed(self._run) if from_end else self._run)
        rest = sorted(filter(self._valid, self._heap), reverse=from_end)
        return (entry for entry, _ in groupby(heapq.merge(run, rest, reverse=from_end)))

    def below(self, bound: K) -> Iterator[K]:
        """The valid entries smaller than bound, in no order; looks only at what is smaller."""
        for entry in takewhile(lambda entry: entry < bound, self._run):
            if self._valid(entry):
                yield entry
        ahead = [0]
        while ahead:
            place = ahead.pop()
            if place < len(self._heap) and self._heap[place] < bound:
                ahead += (2 * place + 1, 2 * place + 2)
                if self._valid(self._heap[place]):
                    yield self._heap[place]

    def _smallest(self) -> K | None:
        if not self._run:
            return self._heap[0] if self._heap else None
        return min(self._run[0], self._heap[0]) if self._heap else self._run[0]


def pop_due(ends: LazyHeap[tuple[int, int]], now: int, limit: int) -> Iterator[int]:
    """Take up to limit entries out whose moment is over, and give the number of each."""
    for _ in range(limit):
        first = ends.first()
        if first is None or first[0] > now:
            return
        ends.pop()
        yield first[1]
