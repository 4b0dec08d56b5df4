"""What is read of a tube in memory by those who look and change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice

from penstock.core.task import UNSTARTED, Record
from penstock.store.base import Lane
from penstock.store.memory.records import expired, place
from penstock.store.memory.tube import TubeState

_AHEAD_LIMIT = 1000


def get(state: TubeState, ids: Iterable[int], now: int) -> list[Record | None]:
    """The tasks with these ids that are not gone."""
    found = (state.records.get(id) for id in ids)
    cancelled = state.links.groups.cancelled
    return [None if r is None or expired(r, now) or cancelled(r) else r for r in found]


def find(state: TubeState, status: str | None, after: int, limit: int, now: int) -> list[Record]:
    """Up to limit tasks above an id, in id order."""
    ids: Iterable[int]
    if status == "~":
        ids = sorted(id for letter in ("~", UNSTARTED) for id in state.apart[letter] if id > after)
    elif status in state.apart:
        ids = sorted(id for id in state.apart[status] if id > after)
    elif state.last_id - after <= 2 * len(state.records):
        ids = range(after + 1, state.last_id + 1)
    else:
        ids = (id for id in state.records if id > after)
    states = {"r": "rq", "~": "~g", None: "rqt~g!"}.get(status, status or "")
    records = (state.records.get(id) for id in ids)
    return list(islice((r for r in records if r and r.state in states and not expired(r, now)), limit))


def ahead(state: TubeState, record: Record) -> int:
    """How many takeable tasks come out before this one, up to a limit."""
    found: set[int] = set()
    for key in state.ready.below(place(record)):
        found.add(key[2])
        if len(found) >= _AHEAD_LIMIT:
            break
    return len(found)


def lane(state: TubeState, utube: str) -> Lane:
    """The numbers of a micro-queue, all 0 when nothing is in it."""
    there = state.lanes.by_name.get(utube) if state.lanes is not None else None
    if there is None:
        return Lane(utube, 0, 0, 0)
    return Lane(utube, there.numbers.taken, there.numbers.heads, there.numbers.waiting)


def lane_holders(state: TubeState, utube: str, limit: int) -> list[Record]:
    """The taken tasks of a micro-queue, oldest hand-out first."""
    taken = (state.records[id] for id in state.apart["t"])
    return nsmallest(limit, (r for r in taken if r.utube == utube), key=lambda r: (r.taken or 0, r.id))
