"""The ids that tasks of unleased kinds have, as far as the store gives them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.ids import Mark, next_marks, shown_mark
from penstock.core.kind import CLOCK
from penstock.core.options import Tube
from penstock.core.task import Entry
from penstock.store.memory.links import Links


class Naming:
    """Of one tube. `last` is the last message's, and stays when that is gone."""

    __slots__ = ("_links", "last", "tube")

    def __init__(self, tube: Tube, links: Links) -> None:
        self.tube = tube
        self._links = links
        self.last: Mark = (0, 0)

    def named(self, entries: Sequence[Entry], first: int, now: int) -> list[Entry]:
        """The entries with their ids; `first` is the integer id of the first."""
        if self.tube.kind.hand_out == CLOCK:
            return [self._element(entry, id) for id, entry in enumerate(entries, first)]
        marks = next_marks(self.last, now, len(entries))
        self.last = marks[-1] if marks else self.last
        return [replace(entry, address=shown_mark(mark)) for entry, mark in zip(entries, marks, strict=True)]

    def _element(self, entry: Entry, id: int) -> Entry:
        if entry.address is not None:
            return entry
        name = f"reply-{id}"
        while name in self._links.by_address:
            name += "-"
        return replace(entry, address=name)
