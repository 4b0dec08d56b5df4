"""The port: the interface that a database implements for the engine. Rows, guards and indexes; no verbs, no rules.

A call of `engine.store.Store` is one `Step` (or a few, where its docstring says so). The engine loads rows, core
decides how they change, and `flush` writes the decision as one atomic change:

- A database with cheap local transactions (memory, SQLite) runs the whole step in one transaction. Loaded rows cannot
  change before the flush, so their guards always hold.
- A server holds no lock between two round trips. Each `load` and each `flush` is a separate round trip and transaction.
  `flush` therefore checks guards. If another client changed a row first, `flush` raises `Conflict` or reports the rows
  that it skipped, and the engine loads again.

Rules for every implementation:
- Time is the clock of the database, or the one that the store was opened with, in milliseconds. A deadline has passed
  at `now == deadline`.
- Every write and every hot statement checks the tube's row, and raises `NoSuchTube` if the row is gone or hidden.
- Lock order on servers: tube (shared), handle (shared), id row, capacity, groups by number, micro-queues by name, tasks
  by id. Takes skip locked rows.
- Counters are exact: a skipped row is not counted.
- The engine marks every ready task as "r"; the database decides which of them are takeable. In a micro-queue kind it
  stores the first (limit - taken) ready tasks of each micro-queue as "r", the others as "q" (`core.task.QUEUED`).
  `Record.rank2` of a fair tube is 0, except that heads carry their micro-queue's turn.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from penstock.core.attempts import StoredAttempt
from penstock.core.audit import Audit
from penstock.core.chain import Link
from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lease import CALL_BITS
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import Blocked, Effects, Joined, Lease, Presence, SessionRecord
from penstock.core.select import Listing
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, StoredOutcome, TubeCounters


class Conflict(Exception):
    """A guard failed: nothing was written, and the caller must load again."""


# A private generator: a program that seeds the global one of `random` would draw the same numbers after every start.
# Reading each number from the operating system took a tenth of the time of a take on SQLite.
_numbers = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_numbers.seed)
#: Draws the number that a take gives its leases.
new_call = partial(_numbers.getrandbits, CALL_BITS)


# What to load.


class ByIds(msgspec.Struct, frozen=True):
    """The tasks with these ids."""

    ids: Sequence[int]


class ByNames(msgspec.Struct, frozen=True):
    """The tasks with these addresses, or, in an unleased kind, with these ids."""

    names: Sequence[str]


class Due(msgspec.Struct, frozen=True):
    """Tasks whose `at` has passed, earliest first. `Loaded.groups` also has every moving group of the tube."""

    limit: int


class Buried(msgspec.Struct, frozen=True):
    """Buried tasks, in take order."""

    limit: int


class Members(msgspec.Struct, frozen=True):
    """Tasks of a group, in id order; with `unstarted`, those that wait for its start (state g), in take order. The
    caller knows the group: `Loaded.groups` may omit it."""

    group: int
    limit: int
    unstarted: bool = False


class Page(msgspec.Struct, frozen=True):
    """Tasks with ids above `after` and up to `upto`, in id order, as stored. Works on a hidden tube, too."""

    after: int
    limit: int
    upto: int | None = None


Select = ByIds | ByNames | Due | Buried | Members | Page | Listing


class Loaded(msgspec.Struct, frozen=True):
    """Tasks, and their groups by number."""

    records: list[Record]
    groups: dict[int, Group]


# What to write.


class Row(msgspec.Struct, frozen=True, gc=False):
    """One task before and after a change. State "-" means removed; "r" is stored as "q" if its micro-queue is at its
    limit.

    Guard: the stored state (r and q count as equal), lease, at and rank1 equal those of `before`; the database's clock
    is before `until`; and the task has no errors if `before` has none, because its holder may not know of them. `error`
    is the last one in `after.errors`. A database writes the fields of `CHANGED`. If `after.payload` is a different
    object, the task was rewritten, and the database writes the fields of `MUTABLE` and the payload.
    """

    before: Record
    after: Record
    events: tuple[str, ...] = ()
    ending: Ending | None = None
    until: int | None = None
    error: StoredAttempt | None = None
    #: The state of the task's group on which the decision is based.
    group_state: str | None = None


# The fields of a Record that a change of state sets; and all fields except the payload that may change after the put.
CHANGED = ("state", "rank2", "attempts", "expires", "at", "owner", "reason", "progress", "errors")
MUTABLE = (
    "state", "rank1", "rank2", "pri", "attempts", "lease", "created", "taken", "expires", "at", "owner", "reason",
    "progress", "errors",
)  # fmt: skip


class GroupRow(msgspec.Struct, frozen=True):
    """One group before and after a change. A database adds the differences of `total`, `left` and `failed`, and sets
    other fields only where they differ, because the engine may have guessed the group without loading it.

    Guard: the stored state is that of `before`. If the group ends or changes its state, the stored `left` must also be
    that of `before`; otherwise `left` must be above 0 after the change.
    """

    before: Group
    after: Group

    @property
    def exact(self) -> bool:
        """Whether the stored number of tasks left must equal `before.left`."""
        return self.after.left <= 0 or self.after.state != self.before.state


class Post(NamedTuple):
    """A reply to a tube, or the next link of a chain with its payload."""

    tube: str
    payload: bytes
    link: Link | None


class Delta(msgspec.Struct):
    """One atomic change: groups, then rows, then new tasks, then works, then the heads of the micro-queues touched."""

    tube: Tube
    rows: list[Row] = msgspec.field(default_factory=list)
    #: New tasks of `tube`, in order, with `group_no` and `unstarted` set. Refused if they exceed the capacity.
    fresh: list[Entry] = msgspec.field(default_factory=list)
    groups: list[GroupRow] = msgspec.field(default_factory=list)
    #: Replies and group work, by tube, in order; not subject to any capacity.
    works: list[tuple[Tube, list[Entry]]] = msgspec.field(default_factory=list)
    #: Remove all tasks of a hidden tube up to this id, uncounted.
    erase_upto: int | None = None
    #: Only if `Step.posts`: replies to other tubes, by tube name, and links of chains.
    posts: list[Post] = msgspec.field(default_factory=list)

    @property
    def all_or_nothing(self) -> bool:
        """Whether one failed guard undoes everything (Conflict); otherwise, rows whose guard fails are skipped."""
        return bool(self.groups or self.works or self.fresh or self.posts)


class Flushed(msgspec.Struct):
    """The result of a flush: skipped ids, new tasks, and the number of tasks that became takeable, by tube number."""

    missed: set[int] = msgspec.field(default_factory=set)
    fresh: list[Record] = msgspec.field(default_factory=list)
    works: list[tuple[Tube, list[Record]]] = msgspec.field(default_factory=list)
    readied: dict[int, int] = msgspec.field(default_factory=dict)
    #: Effects that do not come from the rows.
    effects: Effects | None = None

    def note_rows(self, delta: Delta, changed: set[int], readied: int | None) -> None:
        """Record that the flush changed the tasks with these ids. `readied`: how many became takeable, None if the tube
        has no micro-queues."""
        self.missed = {row.before.id for row in delta.rows} - changed
        if readied is None:
            rows = [row for row in delta.rows if row.before.id in changed and row.after.state != "-"]
            readied = sum((row.after.state == "r") - (row.before.state == "r") for row in rows)
        self.readied[delta.tube.no] = readied

    def note_new(self, delta: Delta, tube: Tube, entries: list[Entry], records: list[Record], readied: int) -> None:
        """Record that the flush stored `entries` of the Delta as `records`, of which `readied` are takeable."""
        self.readied[tube.no] = self.readied.get(tube.no, 0) + readied
        if entries is delta.fresh:
            self.fresh = records
        else:
            self.works.append((tube, records))


class TakeRequest(msgspec.Struct, frozen=True):
    """A take: up to `count` tasks for the session of a handle.

    Tasks come from the first tube that has any. If something is due in a tube (a task's `at`, a moving group, a lapsed
    handle or session), the take stops there without leasing and returns that tube as `TakeAnswer.due`. In the first
    `forced` tubes the take continues even if something is due, and skips tasks past their ttl and tasks of cancelled
    groups. `blocked` registers or unregisters the caller with the number `waiter` in all tubes of the request.
    """

    tubes: Sequence[Tube]
    count: int
    handle: str
    max_pri: int | None = None
    blocked: Blocked = None
    waiter: int = 0
    forced: int = 0


class Found(msgspec.Struct, gc=False):
    """What a take found in one tube, at the time `clock`. `session` is None if the handle is gone.

    `next_at`: the next deadline, 0 while tasks must follow a group. If it has passed and is not applied, the caller
    retries `retry_ms` later. `rank`: that of a round tube's first element.
    """

    session: int | None
    clock: int
    next_at: int | None
    records: list[Record]
    rank: float | None = None
    retry_ms: int = 0


class TakeAnswer(msgspec.Struct):
    """The result of a take. `next_at`: the next deadline in the tubes visited, including sessions and round elements.

    `due`: the tube in which something is due; then nothing was leased. `alive` is False if the handle is gone.
    """

    tube: Tube | None = None
    records: list[Record] = msgspec.field(default_factory=list)
    next_at: int | None = None
    due: Tube | None = None
    alive: bool = True


class LostTake(msgspec.Struct):
    """A take whose answer was lost. It may have leased tasks."""

    tubes: Sequence[Tube]
    handle: str
    call: int
    waiter: int | None = None  # the number of the blocked caller that it may have registered
    since: float = msgspec.field(default_factory=time.monotonic)
    looked: bool = False


class Acked(msgspec.Struct, frozen=True):
    """The tasks that a hot ack removed, by id or, in a reliable tube, by name; how many tasks became takeable; and the
    ids whose outcome is kept. `final`: the others cannot be acked. `effects`: additional ones."""

    keys: set[int] | set[str]
    readied: int = 0
    kept: Sequence[int] = ()
    final: bool = False
    effects: Effects | None = None


class Step(Protocol):
    """One call on the database: the context manager that `Store.step` returns."""

    @property
    def now(self) -> int:
        """The clock of this step, read at its start or, on a server, at its first load."""

    #: Whether replies to other tubes go to `Delta.posts`, because those tubes may be on another server.
    posts: bool

    # tubes
    def tubes(self, names: Sequence[str] | None = None) -> list[Tube]:
        """Return the tubes with these names, or all tubes, sorted by name. A hidden tube (dropped, importing, moved)
        has a name that users cannot choose. A dropped or moved tube has a negative number, so that no statement finds
        it by the number that its tasks keep."""

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        """Create a tube with its counters. Returns None if the name is in use."""

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> None:
        """Set the fields that are given; the tube may be hidden. Resuming a tube wakes its takers."""

    def alter_tube(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        """Change options of a tube and `Overdue.altered`, atomically. Returns the changed tube."""

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        """Rename the tube and negate its number in its row and its counters, so that no later step finds it.

        The same step checks for taken tasks (delivered messages count only if `waiting`), for blocked takers (only if
        `waiting`) and for moving groups. If it finds any, it changes nothing and returns which of the three it found;
        otherwise it returns None. It holds the tube's exclusive lock, so nothing can change in between.
        """

    def clear_tube(self, tube: Tube, *, forget: bool) -> None:
        """Remove the micro-queues, groups, outcomes and waiters of a tube without tasks. `forget`: also remove its row
        and counters; otherwise set these to no stored tasks."""

    # reading
    def load(self, tube: Tube, select: Select) -> Loaded:
        """Load the selected tasks and their groups."""

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, newest: str | None = None,
        after: str | None = None, above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        """Return the group numbered `no`; the live group called `name`; the newest one called `newest`, live or not;
        live groups with names after `after`, by name; or groups with numbers above `above` that are not over."""

    def outcomes_of(self, tube: Tube, keys: Sequence[int | str]) -> dict[int | str, StoredOutcome]:
        """Return the stored outcomes of tasks by id, or of the last task of each address. One query."""

    def outcomes(self, tube: Tube, after: int, limit: int) -> list[StoredOutcome]:
        """Return outcomes of tasks with ids above `after`, in id order."""

    def counters_of(self, tubes: Sequence[Tube]) -> dict[int, TubeCounters]:
        """Return the counters of several tubes by number, with `waits`, in one round trip. Omits missing tubes."""

    def counters(self, tube: Tube, utubes: Sequence[str] = ()) -> TubeCounters:
        """Return the last ids and the counters, also those of these micro-queues. Raises NoSuchTube."""

    def ahead(self, tube: Tube, record: Record) -> int:
        """Count the takeable tasks before this one; may stop at 1,000."""

    def overdue(self) -> tuple[list[Tube], bool, str]:
        """Return the tubes whose tasks, groups or outcomes are due, whether a session is due, and `Overdue.altered`.
        One query, with one index seek per tube and index."""

    # hot
    def take(self, request: TakeRequest) -> TakeAnswer:
        """Lease tasks, or hand them out by the rules of the kind (`core.lifecycle`), and count them."""

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        """Redeliver the oldest delivered messages, up to `count`, stopping at the first one delivered less than
        `elapsed` ago. Returns none while the tube is paused."""

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """Ack the tasks whose lease matches their move, that have no errors and no reply, and are not the last of their
        group. A single move may be a delete by id, which a database may leave to the engine.

        Stores the outcome of a task with an address. Counts down started groups, but never to zero: the engine handles
        a task that may be the last of its group, and tasks of groups that are not started. In a reliable tube, moves
        identify tasks by name.
        """

    def leased_by(self, lost: LostTake) -> list[list[Record]]:
        """Wait until a take whose answer was lost is no longer running, and unregister the caller that it may have
        registered. Returns the tasks that it leased in each of its tubes. A local database loses no answers."""

    # changes
    def flush(self, delta: Delta) -> Flushed:
        """Write a Delta as one atomic change: also store the outcomes of rows with an ending and an address (for
        `tube.retention`), supersede outcomes of addresses that are put again, and update the counters. New messages of
        a reliable tube get their ids here (`core.ids.next_marks`)."""

    def open_group(self, tube: Tube, name: str) -> Group:
        """Return the live group of that name; create it if there is none."""

    def sweep(self, tube: Tube, limit: int) -> bool:
        """Delete up to `limit` each of outcomes and groups past their retention, and of empty micro-queues whose turn
        has passed. Returns whether more may remain."""

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        """Store imported tasks under their own ids, their counts in groups, and outcomes. See `core.transfer`."""

    def activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> bool:
        """Rename an importing tube and add the call counters. Returns False if the name is in use."""

    # sessions
    def join(self, presence: Presence, session: str | None, ttr: int) -> Joined:
        """Add a handle to a new session, or to the live one with that id. Raises NotFound if there is none."""

    def beat(self, handles: Sequence[str]) -> set[str]:
        """Extend the handles that have not lapsed to `sessions.LAPSE_MS` from now. Returns their ids."""

    def end_handles(self, handles: Sequence[str], locus: str | None) -> None:
        """Remove these handles (with `locus`, only those with that locus) and their waiters. The last handle of a
        session sets the session's end time to its `ttr` from now."""

    def ended_sessions(self) -> list[int]:
        """Remove lapsed handles as of their lapse. Returns the sessions whose end time has passed, earliest first."""

    def held(self, session: int, limit: int) -> list[tuple[Tube, Loaded]]:
        """Return up to `limit` tasks that a session holds, by tube."""

    def holds(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        """Return whether the session holds each lease, in one query. No session holds tasks of a cancelled group."""

    def forget_session(self, session: int) -> None:
        """Remove an ended session that holds no tasks."""

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        """Return live sessions, oldest first, with held tasks and waits; or only session `no`, without these."""

    # integrity
    def audit(self, tube: Tube) -> Audit:
        """Return the Audit of one tube, read at one point in time."""

    def restore(self, tube: Tube, record: Record) -> None:
        """Write a repaired task without updating counters or micro-queues; the caller rebuilds them afterwards."""

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        """Recompute the counters (from `audit`), the micro-queues and their heads from the tasks, and repair
        `audit.others`."""
