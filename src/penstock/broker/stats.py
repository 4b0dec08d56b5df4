"""The counters and the description of a tube."""

from __future__ import annotations

import msgspec

from penstock.core.results import Counts


class TaskCounts(msgspec.Struct, frozen=True):
    """Tasks by status. `done` counts all that ever left the tube, `total` those in it now."""

    ready: int
    taken: int
    delayed: int
    buried: int
    done: int
    total: int


class CallCounts(msgspec.Struct, frozen=True):
    """How many tasks each verb and each deadline has affected since the tube was created."""

    put: int
    take: int
    ack: int
    release: int
    delete: int
    bury: int
    kick: int
    touch: int
    ttl: int
    ttr: int
    delay: int
    fail: int


class TubeStats(msgspec.Struct, frozen=True):
    """A tube's counters, exact and read in one step."""

    tasks: TaskCounts
    calls: CallCounts


class TubeInfo(msgspec.Struct, frozen=True):
    """A tube's name, the name of its kind, and the options it was created with."""

    name: str
    kind: str
    options: dict[str, object]


def make_stats(counts: Counts) -> TubeStats:
    """The counters of a store, for people."""
    tasks = TaskCounts(counts.ready, counts.taken, counts.delayed, counts.buried, counts.done, counts.stored)
    return TubeStats(tasks, CallCounts(*(getattr(counts, name) for name in CallCounts.__struct_fields__)))
