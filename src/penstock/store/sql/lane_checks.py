"""What the tasks of a micro-queue say its row and its heads should be. Each SQL store reads and writes them itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.options import Tube

# Of each ready task: its key, state and ranks.
Places = Iterable[tuple[int, str, float, float]]
Numbers = tuple[int, int, int]  # taken, heads, waiting
EMPTY: Numbers = (0, 0, 0)


class Lane(NamedTuple):
    """One micro-queue: counted, as stored, and its ready tasks."""

    tube: Tube
    counted: Numbers
    stored: Numbers
    turn: int
    places: list[tuple[int, str, float, float]]

    @property
    def _wanted(self) -> int:
        taken, heads, waiting = self.counted
        return min(max(self.tube.utube_limit - taken, 0), heads + waiting)

    def faults(self, label: str) -> list[str]:
        """What is wrong with it."""
        name = f"micro-queue {label or '(none)'}"
        wrong = []
        if self.stored != self.counted:
            wrong.append(f"{name} counts {self.stored}, there are {self.counted}")
        if any(state != self._state(place) for place, (_, state, *_) in enumerate(self.places)):
            wrong.append(f"{name} must have its first {self._wanted} ready tasks takeable and has not")
        return wrong

    def _state(self, place: int) -> str:
        return "r" if place < self._wanted else "q"

    def mended(self) -> list[tuple[int, str, float]]:
        """Of each ready task: its key, state and second rank, as they should be."""
        fair = self.tube.fair
        found = [(key, self._state(place), rank2) for place, (key, _, _, rank2) in enumerate(self.places)]
        return [(key, state, (self.turn if state == "r" else 0) if fair else rank2) for key, state, rank2 in found]

    def numbers(self) -> Numbers:
        """What should be stored."""
        return self.counted[0], self._wanted, len(self.places) - self._wanted


def make_lane(tube: Tube, counted: Numbers, stored: tuple[Numbers, int], places: Places) -> Lane:
    """In take order; of a fair tube the rows stand in it already, because the heads alone have a turn."""
    order = list(places)
    if not tube.fair:
        order.sort(key=lambda row: (row[2], row[3], row[0]))
    return Lane(tube, counted, *stored, order)
