"""The store contract: what a broker asks of a store, the same on every store.

Promises:
- Each call is one atomic step unless its docstring says otherwise. A call that raises has changed nothing, except for
  OutcomeUnknown.
- Everything is a batch; a single call is a batch of one.
- Time is the store's own clock in integer milliseconds, read inside the step. `now` overrides it, for tests. A deadline
  is over at `now == deadline`.
- `take` advances its tubes first, so a program without any daemon is correct.
- A tube that was dropped or moved away raises NoSuchTube.
- A task's end keeps its outcome, puts its reply and counts in its group in the same step. A group that has no task left
  ends in that step, and its work is put once. A reply is never refused for lack of room; work of a group takes the room
  of the task that left. Tasks of a cancelled group are treated as gone, removed or not.

A store knows no handler, no retry rule and no waiting caller. It reports what became ready (Effects), and the broker
wakes whoever waits.

Kinds without leases (`core.lifecycle` has their rules):
- The public id of a task is the text in `Record.address`; `Move.name` and `get` use it. `find` goes by integer id.
- A hand-out has no owner, lease number or deadline. `take` needs a live handle; the end of a session touches nothing.
- `round`: a put of an id that is there changes nothing, or only the data. rank1 is the time of the last hand-out.
- `reliable`: messages are named by `core.ids.next_marks`. A delivered one is `t`; its rank1 grows with every hand-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from penstock.core.ending import OutcomeLookup
from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import (
    ADVANCE_STEP,
    Advanced,
    Blocked,
    Counts,
    Description,
    Effects,
    Finding,
    Joined,
    Lane,
    Lease,
    Overdue,
    Presence,
    SessionRecord,
    Settled,
    Stored,
    Taken,
)
from penstock.core.select import Listing, Sweep
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, Kept, TubeCounters
from penstock.engine.lost_takes import LostTakes


@runtime_checkable
class PlainStore(Protocol):
    """A store with a shorter way for single puts that differ only in their data, where microseconds count."""

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """A function that stores a payload as `put` does with this entry; None where `put` must do it."""


class Store(Protocol):
    """The contract. Calls on a tube are given the Tube that `load_tubes` or `save_tube` returned."""

    #: Brokers of one process whose stores have equal identities wake each other's takers.
    identity: str
    #: Whether it is reached over a network: then a waiting take outlasts an outage.
    remote: bool
    #: Whether sessions of other processes can be in this store, so that OS locks tell who lives.
    shared: bool
    #: The takes of this process whose answers were lost: the next take or heartbeat undoes them.
    lost: LostTakes

    def close(self) -> None:
        """Close the store. Only the first call does anything."""

    # tubes
    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        """Create the tube. If it exists, return the stored one (exist_ok) or raise TubeExists."""

    def load_tubes(self, names: Sequence[str] | None = None) -> list[Tube]:
        """All tubes by name, or those of these names. NoSuchTube for a name whose tube is being moved or was moved."""

    def paused(self, tube: Tube) -> bool:
        """Whether the tube is paused."""

    def write_tube(
        self, tube: Tube, *, paused: bool | None = None, changes: Mapping[str, object] | None = None
    ) -> Tube:
        """Pause or resume it: while paused, take returns nothing; everything else continues. Or change options that
        `core.options.check_changes` has checked; `Overdue.altered` then differs, if no option has changed too.

        Returns the tube as it is then. A changed utube_limit holds for what waits already.
        """

    def drop_tube(self, tube: Tube) -> Effects | None:
        """Remove the tube and everything in it. TubeBusy while tasks are taken or someone waits in take."""

    # tasks
    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        """Store all entries in order, or raise TubeFull and store none. Does not advance the tube first."""

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        """Advance the tubes, then lease up to count tasks of the first tube that has any, in its order.

        `blocked` registers a caller that waits on these tubes, so that drop and sessions see it: "register"
        does so if nothing came, "unregister_if_found" removes it if something came, "unregister" always removes it.
        """

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        """Apply each move whose guard still holds, and report which did. A stale move does not stop the others.

        `brief`: the caller needs neither the events nor the records of acked tasks; GONE may stand for such a record.
        """

    def sweep(self, tube: Tube, sweep: Sweep, *, now: int | None = None) -> Settled:
        """Apply a verb to the tasks of one state, whoever holds them. See `core.select.Sweep`.

        Works in bounded steps that are atomic each; tasks put meanwhile are not touched.
        """

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        """Apply what is due to at most limit tasks: delays end, leases lapse, ttls expire, sessions end, tasks follow
        the state of their group, old outcomes are forgotten."""

    def overdue(self, *, now: int | None = None) -> Overdue:
        """The tubes where `advance` has something to do; where only a session has lapsed, any tube. One query."""

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str], *, now: int | None = None) -> list[Record | None]:
        """The tasks with these ids (int) or with these addresses or public ids (str); one past its ttl is None."""

    def find(self, tube: Tube, listing: Listing, *, now: int | None = None) -> list[Record]:
        """A page of tasks. See `core.select` for what can be listed."""

    def count(self, tube: Tube) -> Counts:
        """The counters, read and not recounted."""

    # addresses, outcomes and groups
    def outcome(self, tube: Tube, key: int | str, *, now: int | None = None) -> OutcomeLookup:
        """The live task of an address (str), or how its last one ended; or the same for the addressed task of an id."""

    def open_group(self, tube: Tube, name: str, *, on_failure: str | None = None, now: int | None = None) -> Group:
        """The live group of that name, created if there is none. With `on_failure` it must be new: else BadValue."""

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, after: str = "", limit: int = 100,
        now: int | None = None,
    ) -> list[Group]:  # fmt: skip
        """Up to limit groups that are open or started, by name, after that name; or the group with that number, or the
        newest of that name, also one that is over, until it is past its retention."""

    def change_group(
        self, tube: Tube, no: int, *, to: str | None = None, end: bytes | None = None, cancel: bytes | None = None,
        now: int | None = None,
    ) -> Advanced | None:  # fmt: skip
        """Start or cancel a group (`core.group.STARTED`, `CANCELLING`) and move some of its tasks, or set the work that
        is put at its end or after its cancel. None if the group has ended. A second start or cancel does nothing.

        TubeFull if the group has no task and its work finds no room.
        """

    # sessions
    def join(self, presence: Presence, session: str | None, ttr: int, *, now: int | None = None) -> Joined:
        """Begin a session, or join the live one of that id; NotFound if it is unknown or has lapsed."""

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        """Heartbeat of these handles. Returns those that are still valid; the sessions of the others have ended."""

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        """End these handles. The last handle of a session ends it: its tasks are released, after its ttr if it has one.

        With `locus`, only handles that joined from there: a peer may report the dead of its own host only.
        """

    def sessions(self, no: int | None = None, *, now: int | None = None) -> list[SessionRecord]:
        """The live sessions, oldest first; or the one with that number, without held and waits."""

    # details
    def ahead(self, tube: Tube, record: Record) -> int:
        """How many takeable tasks come before this one; may stop counting at 1,000."""

    def lane(self, tube: Tube, utube: str) -> Lane:
        """The numbers of a micro-queue."""

    def check(self, repair: bool, *, now: int | None = None) -> list[Finding]:
        """Cross-check everything stored, and repair it if asked."""

    def bind(self, connection: object) -> Store:
        """The same store inside the transaction that the caller has begun on its own connection.

        UnsupportedOption if the store has no transactions or the connection belongs to another driver.
        """

    def now(self) -> int:
        """The store's clock."""

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """Sleep until `wake` is set or the time is over (False), or, when watching, until another process may
        have changed something (True). Costs almost nothing while nothing happens."""


class WorkerStore(Store, Protocol):
    """What workers need besides."""

    def held(self, session: int, leases: Sequence[Lease], *, now: int | None = None) -> list[bool]:
        """Whether the session holds each of these leases, in one round trip for all tubes."""


class TransferStore(Store, Protocol):
    """What moving a tube to another store, export, import and `penstock doctor` need besides. Brokers do not use it.

    A tube is imported under a name that nobody can give (`importing`), so that no taker finds it, and gets its own
    name in one step. One that leaves is frozen: in one step its name becomes `moved`, no handle finds it any more, and
    nothing in it changes again. The frozen row stays when its tasks are erased, and says where the tube went. The
    `read_…` calls and `counters` also work on a frozen tube. Each call may be repeated after a crash.
    """

    def describe(self) -> Description:
        """What it is and what it promises, read from its current settings; never a password."""

    def freeze_tube(self, tube: Tube, to: str) -> None:
        """Hide the tube; whoever looks for it is told `to`. TubeBusy while a task is leased or a group's tasks move."""

    def erase_tube(self, tube: Tube) -> None:
        """Remove everything in a frozen or importing tube, in bounded steps, without outcomes and replies.

        The row of a frozen one stays, and says so at the end (`is_erased`).
        """

    def load_frozen(self) -> list[Tube]:
        """All frozen tubes, by name."""

    def forget_tube(self, tube: Tube) -> None:
        """Forget an erased tube and where it went: its name is free again."""

    def counters(self, tube: Tube) -> TubeCounters:
        """Its last ids and its counters."""

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        """Up to limit tasks above an id, in id order, as they are stored."""

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        """Up to limit groups that are not over, above a number, in order."""

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        """Up to limit outcomes of tasks above an id, in id order."""

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        """Store what comes from elsewhere, tasks under their own ids; those up to the last id are there already.

        Ids up to `upto` that none has were put and are done. Nothing else is counted, nobody is woken.
        """

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        """Give an importing tube its name; TubeExists if that is in use.

        The same step adds the calls to its counters, and sets the last message id and, the totals of its groups.
        """


def load_tube(store: Store, name: str) -> Tube | None:
    """The stored tube of that name, or None."""
    return next(iter(store.load_tubes([name])), None)
