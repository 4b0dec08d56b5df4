"""Keys in order, kept in short sorted lists, so that adding and removing one moves few others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import Any

# A tuple that ends with a task's id. All keys of one index have the same shape.
Key = tuple[Any, ...]

# A list is split when it is longer. With 1,000, deleting its first key moves 8 KB: about as fast as a deque.
_LONGEST = 1000


class Ordered:
    """A sorted set of keys."""

    __slots__ = ("_lasts", "_lists")

    def __init__(self) -> None:
        self._lists: list[list[Key]] = []
        self._lasts: list[Key] = []  # the last key of each list

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(self._lists)

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    def __bool__(self) -> bool:
        return bool(self._lists)

    def add(self, key: Key) -> None:
        """Add a key; one that is there already stays alone."""
        lists, lasts = self._lists, self._lasts
        if not lasts or (key > lasts[-1] and len(lists[-1]) >= _LONGEST):
            lists.append([key])
            lasts.append(key)
        elif key > lasts[-1]:
            lists[-1].append(key)
            lasts[-1] = key
        else:
            number = bisect_left(lasts, key)
            keys = lists[number]
            place = bisect_left(keys, key)
            if keys[place] != key:
                keys.insert(place, key)
                if len(keys) > _LONGEST:
                    middle = len(keys) // 2
                    lists[number : number + 1] = [keys[:middle], keys[middle:]]
                    lasts.insert(number, keys[middle - 1])

    def discard(self, key: Key) -> None:
        """Remove a key, if it is there."""
        lists, lasts = self._lists, self._lasts
        number = 0 if lasts and key == lists[0][0] else bisect_left(lasts, key)
        if number == len(lasts):
            return
        keys = lists[number]
        place = bisect_left(keys, key) if key != keys[0] else 0
        if keys[place] != key:
            return
        del keys[place]
        if not keys:
            del lists[number], lasts[number]
        elif place == len(keys):
            lasts[number] = keys[-1]

    def first(self) -> Key | None:
        """The smallest key, or None."""
        return self._lists[0][0] if self._lists else None

    def pop(self) -> Key:
        """Remove the smallest key and return it."""
        first = self._lists[0][0]
        self.discard(first)
        return first

    def within(self, *prefix: Any) -> Iterator[Key]:
        """The keys that begin with these values."""
        number, size = bisect_left(self._lasts, prefix), len(prefix)
        start = bisect_left(self._lists[number], prefix) if number < len(self._lists) else 0
        keys = islice(chain.from_iterable(islice(self._lists, number, None)), start, None)
        return takewhile(lambda key: key[:size] == prefix, keys)
