"""What stores answer: values that every store fills alike, and that brokers, workers and servers read."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.errors import NotFound

# A bounded step of `advance`: long enough to be worth its commit, short enough not to hold others up.
ADVANCE_STEP = 1000


Blocked = Literal["register", "unregister_if_found", "unregister"] | None


class Event(msgspec.Struct, frozen=True):
    """One thing that happened to one task, for on_change; the record is as it is afterwards."""

    tube: int
    name: str
    record: Record


class Effects(msgspec.Struct):
    """What a step did beyond its answer: tasks that became takeable and tasks gone, by tube number."""

    events: list[Event] = msgspec.field(default_factory=list)
    readied: dict[int, int] = msgspec.field(default_factory=dict)
    removed: dict[int, int] = msgspec.field(default_factory=dict)
    #: Ends that somebody may wait for: ("task", tube, id) of an addressed task, ("group", tube, number).
    ended: list[tuple[str, int, int]] = msgspec.field(default_factory=list)

    def add(self, more: Effects) -> None:
        """Take over what another step did."""
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
    """What a take got, from which tube, and when the store must be looked at again.

    `wait_ms`: so long until the next known moment of these tubes; 0 when work is left undone; None: none known.
    `alive` is False when the session is gone: nothing was taken.
    """

    tube: Tube | None
    records: list[Record]
    wait_ms: int | None
    alive: bool
    effects: Effects


class Settled(msgspec.Struct, frozen=True):
    """For each move the task afterwards (state - when it is gone), or None where the guard failed."""

    records: list[Record | None]
    effects: Effects


# Stands for any task that was acked, where nobody asked for more.
GONE = Record(0, "-", 0, 0, 0, None, 0, 0, 0, None, None, None, None, None, None, None, b"")


class Advanced(msgspec.Struct, frozen=True):
    """`more` says that something is still due; `wait_ms` as in Taken."""

    more: bool
    wait_ms: int | None
    effects: Effects


class Overdue(msgspec.Struct, frozen=True):
    """What the clock demands of a store: the tubes where something is due, and the clock.

    `altered` differs after the options of any tube or the stored schedules were changed; it says nothing else.
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
        """How many tasks are there."""
        return self.ready + self.taken + self.delayed + self.buried


# stored state -> the counter it stands in
STATE_COUNTER = {
    "r": "ready", "q": "ready", "t": "taken", "~": "delayed", "g": "delayed", "!": "buried", "-": "done",
}  # fmt: skip


class Presence(msgspec.Struct, frozen=True):
    """Who joins a session: one handle in one process. `locus` is where its OS lock can be trusted."""

    handle: str
    host: str
    pid: int
    locus: str


class Joined(msgspec.Struct, frozen=True):
    """A handle's place in a session."""

    session: int
    id: str


class Lease(NamedTuple):
    """One hand-out of one task."""

    tube: Tube
    id: int
    lease: int


class SessionRecord(msgspec.Struct, frozen=True):
    """A live session, for people."""

    id: str
    host: str
    pid: int
    heartbeat: int
    held: list[tuple[str, int]]
    waits: list[str]


class Finding(msgspec.Struct, frozen=True):
    """A state that must not exist, and what mends it."""

    tube: str
    id: int | str | None
    what: str
    remedy: str


class Description(msgspec.Struct, frozen=True):
    """A store as it is: what it promises by its real settings, and what should be done about them."""

    store: str
    version: str
    where: str
    durability: str
    schema: int | None
    advice: list[str]


class Lane(msgspec.Struct, frozen=True):
    """A micro-queue at this moment."""

    utube: str
    taken: int
    heads: int
    waiting: int


def lapsed(session: str | None) -> NotFound:
    """What joining a session that does not live raises, in the same words on every store."""
    return NotFound(f"session {session} is unknown or has lapsed: begin a new one with broker.session()")
