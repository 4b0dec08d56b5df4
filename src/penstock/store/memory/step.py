"""One atomic step: its moment, and what it did beyond its answer."""

from __future__ import annotations

from collections import deque

from penstock.core.task import Record
from penstock.store.base import Effects, Event


class Step:
    """Collects the Effects of one call at one moment."""

    __slots__ = ("ended", "events", "now", "readied", "removed", "works")

    def __init__(self, now: int) -> None:
        self.now = now
        self.events: list[Event] = []
        self.readied: dict[int, int] = {}
        self.removed: dict[int, int] = {}
        self.ended: list[tuple[str, int, int]] = []
        #: Replies and group work to be put before the step is over: the tube's name, and the data.
        self.works: deque[tuple[str, bytes]] = deque()

    def tell(self, tube: int, name: str, record: Record) -> None:
        """Something happened to a task."""
        self.events.append(Event(tube, name, record))

    def ready(self, tube: int, change: int) -> None:
        """So many tasks became takeable; negative when one lost its place to another."""
        self.readied[tube] = self.readied.get(tube, 0) + change

    def gone(self, tube: int) -> None:
        """A task left the tube."""
        self.removed[tube] = self.removed.get(tube, 0) + 1

    def effects(self) -> Effects:
        """What to report: only tubes that gained takeable tasks count as readied."""
        readied = {tube: gain for tube, gain in self.readied.items() if gain > 0}
        return Effects(self.events, readied, self.removed, self.ended)
