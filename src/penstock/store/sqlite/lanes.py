"""Micro-queues in SQLite: the lane rows touched by one step, and the heads they demand."""

from __future__ import annotations

import apsw

from penstock.core.lane import LaneState, next_turn
from penstock.core.options import Tube
from penstock.store.sql.queries import load_queries

Q = load_queries("penstock.store.sqlite")

Place = tuple[float, float, int]  # rank1, rank2, key


class Lanes:
    """The lanes of one tube during one transaction; `save` writes those that were touched."""

    def __init__(self, db: apsw.Connection, tube: Tube, now: int) -> None:
        self._execute = db.execute
        self._changes = db.changes
        self._tube = tube
        self._now = now
        self._lanes: dict[str, LaneState] = {}
        self._stored: set[str] = set()
        self.readied = 0  # tasks that became takeable by promotion, less those demoted

    def arrive(self, utube: str, place: Place, *, newest: bool = False, was: str = "") -> tuple[str, float]:
        """A task becomes ready: its state, r or q, and its second rank.

        `newest`: there is nothing it could overtake. `was`: the state in which it was in this micro-queue; it gives
        its slot back, to itself or to a more urgent one.
        """
        lane = self._lane(utube)
        if self._tube.fair and lane.empty:
            lane.turn = next_turn(lane.turn, self._now)
        _leave(lane, was)
        if lane.room(self._tube.utube_limit) > 0:
            if lane.waiting and self._before(first := self._end_of(Q.first_waiting, utube), place):
                self._promote(lane, first)
                return self._queue(lane, place)
            lane.heads += 1
            return "r", self._rank2(lane, place)
        if lane.heads and not newest and self._before(place, worst := self._end_of(Q.worst_head, utube)):
            self._demote(lane, worst)
            lane.heads += 1
            return "r", self._rank2(lane, place)
        return self._queue(lane, place)

    def left(self, utube: str, state: str) -> None:
        """A task has left its ready or taken state, in the table too: the next one is promoted."""
        if self._passed_on(utube, state):
            return
        lane = self._lane(utube)
        _leave(lane, state)
        while lane.waiting and lane.room(self._tube.utube_limit) > 0:
            self._promote(lane, self._end_of(Q.first_waiting, utube))

    def _passed_on(self, utube: str, state: str) -> bool:
        """Where someone waits there was no room, so that one place goes to the first of them: no row need be read."""
        if self._tube.fair or utube in self._lanes or state == "q":
            return False
        self._execute(Q.promote_first, (self._tube.no, utube))
        if not self._changes():
            return False
        self.readied += 1
        self._execute(Q.shift_lane, (self._tube.no, utube, -1 if state == "t" else 0, 1 if state == "t" else 0, -1))
        return True

    def served(self, utube: str) -> None:
        """A head was taken."""
        if not self._tube.fair and utube not in self._lanes:
            self._execute(Q.shift_lane, (self._tube.no, utube, 1, -1, 0))
            return
        lane = self._lane(utube)
        lane.heads -= 1
        lane.taken += 1
        if self._tube.fair:
            lane.turn = next_turn(lane.turn, self._now)
            if lane.heads:
                self._execute(Q.turn_heads, (self._tube.no, utube, lane.turn))

    def save(self) -> None:
        """Write the touched lanes; one that is empty is forgotten once its turn cannot matter any more."""
        for utube, lane in self._lanes.items():
            row = (self._tube.no, utube, lane.taken, lane.heads, lane.waiting, lane.turn)
            if lane.empty and (not self._tube.fair or lane.turn < self._now):
                self._execute(Q.forget_lane, row[:2])
                self._stored.discard(utube)
            else:
                self._execute(Q.set_lane if utube in self._stored else Q.save_lane, row)
                self._stored.add(utube)

    def forget_idle(self) -> None:
        """Forget some lanes whose turn is over. One that was touched since it was read must be inserted anew."""
        self._stored.difference_update(
            [utube for (utube,) in self._execute(Q.forget_idle_lanes, (self._tube.no, self._now))]
        )

    def _lane(self, utube: str) -> LaneState:
        lane = self._lanes.get(utube)
        if lane is None:
            row = self._execute(Q.lane, (self._tube.no, utube)).get
            lane = self._lanes[utube] = LaneState(*row) if row else LaneState()
            if row:
                self._stored.add(utube)
        return lane

    def _queue(self, lane: LaneState, place: Place) -> tuple[str, float]:
        lane.waiting += 1
        return "q", 0 if self._tube.fair else place[1]

    def _rank2(self, lane: LaneState, place: Place) -> float:
        return lane.turn if self._tube.fair else place[1]

    def _before(self, one: Place, other: Place) -> bool:
        if self._tube.fair:  # the second rank is the lane's turn, the same for all of it
            return (one[0], one[2]) < (other[0], other[2])
        return one < other

    def _end_of(self, query: str, utube: str) -> Place:
        key, rank1, rank2 = self._execute(query, (self._tube.no, utube)).get
        return rank1, rank2, key

    def _promote(self, lane: LaneState, place: Place) -> None:
        lane.waiting -= 1
        lane.heads += 1
        self.readied += 1
        self._execute(Q.set_head, (place[2], "r", self._rank2(lane, place)))

    def _demote(self, lane: LaneState, place: Place) -> None:
        lane.heads -= 1
        lane.waiting += 1
        self.readied -= 1
        self._execute(Q.set_head, (place[2], "q", 0 if self._tube.fair else place[1]))


def _leave(lane: LaneState, state: str) -> None:
    """One less in that state; any other is outside of the micro-queue."""
    if state == "t":
        lane.taken -= 1
    elif state == "r":
        lane.heads -= 1
    elif state == "q":
        lane.waiting -= 1
