"""The values that stores return."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Literal, NamedTuple

import msgspec

from penstock.core.lifecycle import UNDONE
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.errors import NotFound

# Tasks in one step of `advance`: enough to be worth a commit, few enough not to delay other callers.
ADVANCE_STEP = 1000


Blocked = Literal["register", "unregister_if_found", "unregister"] | None


class Event(msgspec.Struct, frozen=True, gc=False):
    """One change of a task, for on_change. `tube` is the tube's number; `record` is the task after the change."""

    tube: int
    name: str
    record: Record


class Effects(msgspec.Struct):
    """Side effects of a step: tasks that became takeable and tasks that ended, by tube number."""

    events: list[Event] = msgspec.field(default_factory=list)
    readied: dict[int, int] = msgspec.field(default_factory=dict)
    removed: dict[int, int] = msgspec.field(default_factory=dict)
    #: Ends that a caller may wait for: ("task", tube, id) of an addressed task, ("group", tube, number).
    ended: list[tuple[str, int, int]] = msgspec.field(default_factory=list)

    def add(self, more: Effects) -> None:
        """Add the effects of another step."""
        self.events += more.events
        self.ended += more.ended
        for counts, gains in ((self.readied, more.readied), (self.removed, more.removed)):
            for tube, gain in gains.items():
                counts[tube] = counts.get(tube, 0) + gain


class Stored(msgspec.Struct, frozen=True):
    """The tasks of a put, in order."""

    records: list[Record]
    effects: Effects


class Taken(msgspec.Struct, frozen=True):
    """The tasks of a take and the tube they came from.

    `wait_ms`: milliseconds until the next deadline in these tubes; 0 if work remains, None if there is no deadline. If
    tasks were taken, it only says whether work remains.
    `alive` is False if the session has ended; nothing was taken then. The effects have no `take` events: the caller
    makes them from the records.
    """

    tube: Tube | None
    records: list[Record]
    wait_ms: int | None
    alive: bool
    effects: Effects


class Settled(msgspec.Struct, frozen=True):
    """For each move, the task after it (state - if it is gone), or None if the guard failed."""

    records: list[Record | None]
    effects: Effects


# Placeholder for an acked task if the caller did not ask for its record.
GONE = Record(0, "-", 0, 0, 0, None, 0, 0, 0, None, None, None, None, None, None, None, b"")


class Advanced(msgspec.Struct, frozen=True):
    """The result of an advance. `more`: something is still due. `wait_ms`: as in Taken."""

    more: bool
    wait_ms: int | None
    effects: Effects


class Overdue(msgspec.Struct, frozen=True):
    """The tubes where something is due, and the store's clock.

    `altered` is an opaque text that changes whenever the options of a tube or the stored schedules change.
    """

    tubes: list[Tube]
    altered: str
    now: int


class Counts(msgspec.Struct, frozen=True):
    """The counters of one tube, kept by the store with every step."""

    ready: int = 0
    taken: int = 0
    delayed: int = 0
    buried: int = 0
    done: int = 0
    put: int = 0
    take: int = 0
    ack: int = 0
    release: int = 0
    delete: int = 0
    bury: int = 0
    kick: int = 0
    touch: int = 0
    ttl: int = 0
    ttr: int = 0
    delay: int = 0
    fail: int = 0

    @property
    def stored(self) -> int:
        """The number of stored tasks."""
        return self.ready + self.taken + self.delayed + self.buried


# stored state -> its counter
STATE_COUNTER = {
    "r": "ready", "q": "ready", "t": "taken", "~": "delayed", "g": "delayed", "!": "buried", "-": "done",
}  # fmt: skip


@cache
def weights(before: str, after: str, events: tuple[str, ...]) -> Counter[str]:
    """What a change of a task adds to the counters of its tube, of which `before` and `after` count its states."""
    counts = Counter(event for event in events if event not in ("put", UNDONE))
    counts["take"] -= events.count(UNDONE)
    counts[before] -= 1
    counts[after] += 1
    return counts


class Presence(msgspec.Struct, frozen=True):
    """The handle by which a process joins a session. `locus`: the host on which its OS lock can be trusted."""

    handle: str
    host: str
    pid: int
    locus: str


class Joined(msgspec.Struct, frozen=True):
    """The session that a handle joined."""

    session: int
    id: str


class Lease(NamedTuple):
    """One hand-out of one task."""

    tube: Tube
    id: int
    lease: int


class SessionRecord(msgspec.Struct, frozen=True):
    """A live session, as `broker.sessions()` shows it."""

    id: str
    host: str
    pid: int
    heartbeat: int
    held: list[tuple[str, int]]
    waits: list[str]


class Finding(msgspec.Struct, frozen=True):
    """An inconsistency in the stored data, and its remedy."""

    tube: str
    id: int | str | None
    what: str
    remedy: str


class Description(msgspec.Struct, frozen=True):
    """What a store is and promises with its current settings, and advice on which settings to change."""

    store: str
    version: str
    where: str
    durability: str
    schema: int | None
    advice: list[str]


class MicroQueue(msgspec.Struct, frozen=True):
    """The counters of a micro-queue."""

    utube: str
    taken: int
    heads: int
    waiting: int


def lapsed(session: str | None) -> NotFound:
    """The error for joining a session that does not exist."""
    return NotFound(f"session {session} is unknown or has lapsed: begin a new one with broker.session()")
