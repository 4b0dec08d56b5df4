"""The store contract: a dozen atomic steps that every store takes alike.

Promises, in every store:
- Each call is one atomic step. A call that raises has changed nothing, except OutcomeUnknown.
- Everything is a batch; a single call is a batch of one.
- Time is the store's own clock in integer milliseconds, read inside the step. `now` overrides it, for tests.
- A deadline is over at `now == deadline`.
- `take` looks after the tube first (`advance`), so a program without any daemon is correct.
- A tube that was dropped raises NoSuchTube.
A store knows no handler, no retry rule and no waiting caller; it reports what became ready (Effects) and
the broker wakes whoever waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from penstock.core.kind import Kind
from penstock.core.lifecycle import Move, altered
from penstock.core.options import Tube
from penstock.core.results import (
    ADVANCE_STEP,
    GONE,
    LAPSE_MS,
    STATE_COUNTER,
    Advanced,
    Blocked,
    Counts,
    Description,
    Effects,
    Event,
    Finding,
    Joined,
    Lane,
    Presence,
    SessionRecord,
    Settled,
    Stored,
    Taken,
    lapsed,
)
from penstock.core.task import Entry, Record
from penstock.store.linked import LinkedStore
from penstock.store.moving import MovingStore
from penstock.store.unleased import UnleasedStore

__all__ = [
    "ADVANCE_STEP",
    "GONE",
    "LAPSE_MS",
    "STATE_COUNTER",
    "Advanced",
    "Blocked",
    "Counts",
    "Description",
    "Effects",
    "Event",
    "Finding",
    "Joined",
    "Lane",
    "PlainStore",
    "Presence",
    "SessionRecord",
    "Settled",
    "Store",
    "Stored",
    "Taken",
    "altered",
    "lapsed",
]


@runtime_checkable
class PlainStore(Protocol):
    """A store with a shorter way for single puts that differ in their data alone, where every microsecond shows."""

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """Stores a payload each time it is called, as `put` does with such an entry; None where `put` must do it."""


class Store(LinkedStore, UnleasedStore, MovingStore, Protocol):
    """The contract. Methods that change a tube take the Tube that `load_tube` or `save_tube` gave."""

    #: Brokers of one process whose stores have equal identities wake each other's takers.
    identity: str
    #: Whether it is reached over a network: then a waiting take outlasts an outage.
    remote: bool
    #: Whether sessions of other processes can be in this store, so that OS locks tell who lives.
    shared: bool

    def close(self) -> None:
        """Let go of the store. Only the first call does anything."""

    # tubes
    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        """Create the tube and answer it; when it is there, answer the stored one (exist_ok) or raise TubeExists."""

    def load_tube(self, name: str) -> Tube | None:
        """The stored tube, or None."""

    def load_tubes(self) -> list[Tube]:
        """All tubes, by name."""

    def drop_tube(self, tube: Tube) -> Effects | None:
        """Remove the tube and what is in it. TubeBusy while tasks are taken or someone waits in take."""

    def pause_tube(self, tube: Tube, paused: bool) -> None:
        """While paused, take answers nothing; everything else goes on."""

    def paused(self, tube: Tube) -> bool:
        """Whether the tube is paused."""

    # tasks
    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        """Store all entries in order, or raise TubeFull and store none; what is due is not done first."""

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        """Advance the tubes, then lease up to count tasks of the first tube that has any, in its order.

        `blocked` registers a caller that waits on these tubes, so that drop and sessions see it: "enter" counts
        it in when nothing came, "stay" counts it out when something came, "leave" counts it out anyway.
        """

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        """Apply each move whose guard still holds, and say which did. A stale move does not stop the others.

        `brief`: nobody wants the events, and of a task that is acked no more than that. Where that is less work, GONE
        stands for it, and the events are left out.
        """

    def kick(self, tube: Tube, count: int, *, now: int | None = None) -> Settled:
        """Un-bury up to count tasks, in take order."""

    def release_all(self, tube: Tube, *, now: int | None = None) -> Settled:
        """Release every taken task, whoever holds it."""

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        """Do what is due, at most limit tasks: delays end, leases lapse, ttls expire; lapsed sessions end."""

    def truncate(self, tube: Tube, *, now: int | None = None) -> Settled:
        """Remove every task, leases too, in bounded steps that each are atomic; tasks put meanwhile stay."""

    def get(self, tube: Tube, ids: Sequence[int], *, now: int | None = None) -> list[Record | None]:
        """The tasks with these ids; one past its ttl, unless taken, is None."""

    def find(
        self, tube: Tube, status: str | None, after: int | None, limit: int, *, now: int | None = None
    ) -> list[Record]:
        """Up to limit tasks in id order, of one public status if given, with ids above `after`."""

    def count(self, tube: Tube) -> Counts:
        """The counters, read and not recounted."""

    # sessions
    def join(self, presence: Presence, session: str | None, ttr: int, *, now: int | None = None) -> Joined:
        """Begin a session, or join the live one of that id; NotFound when it is unknown or lapsed."""

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        """Say that these handles live; answers those that still count. The others' sessions are gone."""

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        """End these handles; the last handle of a session ends it: its tasks are released, after its ttr if any.

        With `locus`, only those that joined from there: a peer's word that they are dead is good nowhere else.
        """

    def sessions(self, *, now: int | None = None) -> list[SessionRecord]:
        """The live sessions, oldest first."""

    # looking closer
    def ahead(self, tube: Tube, record: Record) -> int:
        """How many takeable tasks come out before this one; may count up to 1,000 and stop."""

    def lane(self, tube: Tube, utube: str) -> Lane:
        """The micro-queue's numbers now."""

    def lane_holders(self, tube: Tube, utube: str, limit: int) -> list[Record]:
        """Its taken tasks, oldest hand-out first."""

    def owner(self, session: int) -> SessionRecord | None:
        """The session with that number, without held and waits."""

    def check(self, repair: bool, *, now: int | None = None) -> list[Finding]:
        """Cross-check everything stored, and mend it when asked."""

    def bind(self, connection: object) -> Store:
        """The same store inside the transaction that the caller has begun on that connection of its own.

        UnsupportedOption where the store has no transactions or the connection is of another driver.
        """

    def describe(self) -> Description:
        """What it is and what it promises, read from its real settings; never a password."""

    def now(self) -> int:
        """The store's clock."""

    # waiting
    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """Sleep until `wake` is set or the time is over (False), or, when watching, until another process may
        have changed something (True). Costs almost nothing while nothing happens."""
