"""The port: what the engine asks of a database. A database knows rows, guards and indexes, but no verb and no rule.

A call of the store's contract is one `Step` (or a few, where the contract says so). The engine loads rows, core
decides what becomes of them, and `flush` writes the decision as one atomic change:

- A database with cheap local transactions (memory, SQLite) begins one with the step and commits it at the step's end.
  What was loaded cannot change before the flush, so its guards always hold.
- A server holds no lock between two round trips. Each `load` and each `flush` is a round trip and a transaction of its
  own. `flush` therefore checks guards, and raises `Conflict`, or reports the rows that it left out, where somebody
  else was faster. The engine then loads again.

Rules for every implementation:
- Time is the database's clock in milliseconds, unless the step was given `now`. At `now == deadline` it is over.
- `NoSuchTube` for a tube whose row is gone or hidden: every write and every hot statement looks for it.
- Lock order on servers: tube (shared), handle (shared), id row, capacity, groups by number, micro-queues by name, tasks
  by id. Takes skip what is locked.
- Counters are exact: a row that was left out is not counted.
- Ready, or waiting behind its micro-queue, is the database's business: the engine says "r". In a micro-queue kind the
  first (limit - taken) ready tasks of each micro-queue are stored as "r", the others as "q" (`core.task.QUEUED`).
  `Record.rank2` of a fair tube is 0, except that heads carry their micro-queue's turn.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from penstock.core.attempts import StoredAttempt
from penstock.core.chain import Link
from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lease import CALL_BITS
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import Blocked, Effects, Lease, MicroQueue, Presence, SessionRecord
from penstock.core.select import Listing
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, Kept, TubeCounters


class Conflict(Exception):
    """A guard failed: nothing was written, and the caller must load again."""


# Our own generator: a program that seeds that of `random` would draw the same numbers after every start. Asking the
# system for each number took a tenth of a take on SQLite.
_numbers = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_numbers.seed)
#: Draws the number that a take gives its leases.
new_call = partial(_numbers.getrandbits, CALL_BITS)


# ---- what to load


class ByIds(msgspec.Struct, frozen=True):
    """The tasks with these ids."""

    ids: Sequence[int]


class ByNames(msgspec.Struct, frozen=True):
    """The tasks with these addresses, or, in an unleased kind, with these ids."""

    names: Sequence[str]


class Due(msgspec.Struct, frozen=True):
    """Tasks whose `at` has come, soonest first; `Loaded.groups` also has every group of the tube that is moving."""

    limit: int


class Taken(msgspec.Struct, frozen=True):
    """Taken tasks above an id, in id order."""

    after: int
    limit: int


class Buried(msgspec.Struct, frozen=True):
    """Buried tasks, in take order."""

    limit: int


class Members(msgspec.Struct, frozen=True):
    """Tasks of a group, in id order; or those that wait for its start (state g), in take order."""

    group: int
    limit: int
    unstarted: bool = False


class Page(msgspec.Struct, frozen=True):
    """Tasks with ids above `after` and up to `upto`, in id order, as they are stored; also of a hidden tube."""

    after: int
    limit: int
    upto: int | None = None


Select = ByIds | ByNames | Due | Taken | Buried | Members | Page | Listing


class Loaded(msgspec.Struct, frozen=True):
    """Tasks, and the groups that they are in, by number."""

    records: list[Record]
    groups: dict[int, Group]


# ---- what to write


class Row(msgspec.Struct, frozen=True, gc=False):
    """One task before and after. State "-" is gone; "r" becomes "q" where its micro-queue has no room.

    Guard: state (r and q are the same), lease, at and rank1 are those of `before`, the database's clock is before
    `until`, and the task has no errors if `before` has none: its holder may not know of them. `error` is the one that
    `after.errors` ends with. A database writes the fields of `CHANGED`; where the payload is another object, the task
    was rewritten, and it writes those of `MUTABLE` and the payload.
    """

    before: Record
    after: Record
    events: tuple[str, ...] = ()
    ending: Ending | None = None
    until: int | None = None
    error: StoredAttempt | None = None
    #: The state of the task's group that this was decided by.
    group_state: str | None = None


# The fields of a Record that a change of its state sets; and all that may change after its put, beside the payload.
CHANGED = ("state", "rank2", "attempts", "expires", "at", "owner", "reason", "progress", "errors")
MUTABLE = (
    "state", "rank1", "rank2", "pri", "attempts", "lease", "created", "taken", "expires", "at", "owner", "reason",
    "progress", "errors",
)  # fmt: skip


class GroupRow(msgspec.Struct, frozen=True):
    """One group before and after. `total`, `left` and `failed` are added to by their differences, the rest is set
    where it differs: of a group that was guessed, nothing else is known.

    Guard: the state is that of `before`; and, if the group is over afterwards or starts to move, `left` is that of
    `before`, else something is left of it after the change.
    """

    before: Group
    after: Group

    @property
    def exact(self) -> bool:
        """Whether the number of tasks left must be the one that was seen."""
        return self.after.left <= 0 or self.after.state != self.before.state


class Post(NamedTuple):
    """A reply for a tube, or a link of a chain with its data."""

    tube: str
    payload: bytes
    link: Link | None


class Delta(msgspec.Struct):
    """One atomic change: groups, then rows, then new tasks, then works, then the heads of the micro-queues touched."""

    tube: Tube
    rows: list[Row] = msgspec.field(default_factory=list)
    #: New tasks of `tube`, in order. `Entry.group_no` and `Entry.unstarted` are decided. Refused over its capacity.
    fresh: list[Entry] = msgspec.field(default_factory=list)
    groups: list[GroupRow] = msgspec.field(default_factory=list)
    #: Replies and group work, by tube, in order; not subject to any capacity.
    works: list[tuple[Tube, list[Entry]]] = msgspec.field(default_factory=list)
    #: Remove all tasks of a hidden tube up to this id, uncounted.
    erase_upto: int | None = None
    #: Where a step posts: what goes to other tubes, by their names, and links of chains.
    posts: list[Post] = msgspec.field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether one failed guard undoes everything (Conflict); else rows whose guard fails are left out."""
        return bool(self.groups or self.works or self.fresh or self.posts)


class Flushed(msgspec.Struct):
    """What a flush did: ids of rows that were left out, the new tasks, and the tasks that became takeable by tube."""

    missed: set[int] = msgspec.field(default_factory=set)
    fresh: list[Record] = msgspec.field(default_factory=list)
    works: list[tuple[Tube, list[Record]]] = msgspec.field(default_factory=list)
    readied: dict[int, int] = msgspec.field(default_factory=dict)
    #: What it did beside the rows.
    beside: Effects | None = None

    def note_rows(self, delta: Delta, changed: set[int], readied: int | None) -> None:
        """It changed the tasks with these ids; `readied`: how many became takeable, None if there are no
        micro-queues."""
        self.missed = {row.before.id for row in delta.rows} - changed
        if readied is None:
            rows = [row for row in delta.rows if row.before.id in changed and row.after.state != "-"]
            readied = sum((row.after.state == "r") - (row.before.state == "r") for row in rows)
        self.readied[delta.tube.no] = readied

    def note_new(self, delta: Delta, tube: Tube, entries: list[Entry], records: list[Record], readied: int) -> None:
        """It stored entries of the Delta as these tasks, of which some are takeable."""
        self.readied[tube.no] = self.readied.get(tube.no, 0) + readied
        if entries is delta.fresh:
            self.fresh = records
        else:
            self.works.append((tube, records))


class Request(msgspec.Struct, frozen=True):
    """A take: up to `count` tasks for the session of a handle.

    The first tube that has any is taken from. Where something is due in a tube (a task's `at`, a group that moves, a
    lapsed handle or session), the take stops there without leasing and says so. The first `forced` tubes are looked at
    whatever is due: tasks past their ttl and tasks of cancelled groups are passed over. Of these only the last is
    leased from, because the others had nothing before (`wanted`). `blocked` counts in all tubes of the request, and is
    about the caller with the number `waiter`.
    """

    tubes: Sequence[Tube]
    count: int
    handle: str
    max_pri: int | None = None
    blocked: Blocked = None
    waiter: int = 0
    forced: int = 0

    def wanted(self, place: int) -> int:
        """How many tasks to take from the tube at that place."""
        return self.count if place >= self.forced - 1 else 0


class Handed(msgspec.Struct):
    """What a take got. `next_at`: the next known moment in the tubes looked at, also of sessions and round elements.

    `due`: the tube in which something is due, nothing was leased. `alive` is False when the handle is gone. `before`:
    what had to be done first, that is, earlier takes undone whose answers were lost.
    """

    tube: Tube | None = None
    records: list[Record] = msgspec.field(default_factory=list)
    next_at: int | None = None
    due: Tube | None = None
    alive: bool = True
    before: Effects | None = None


class Acked(msgspec.Struct, frozen=True):
    """Which tasks a hot ack removed, by id or, in a reliable tube, by name; how many became takeable by it; and the ids
    of those whose outcome is kept. `judged`: the others cannot be acked. `beside`: what else it did."""

    keys: set[int] | set[str]
    readied: int = 0
    kept: Sequence[int] = ()
    judged: bool = False
    beside: Effects | None = None


class SessionRow(NamedTuple):
    """A session, and when it ends if nobody beats or joins it."""

    no: int
    id: str
    end: int


class HandleRow(msgspec.Struct, frozen=True):
    """A handle of a session: lapsed from `until` on."""

    id: str
    session: int
    locus: str
    until: int


class Audit(msgspec.Struct, frozen=True):
    """What is stored of one tube beside its tasks, and what the tasks say: the facts that `engine.integrity` compares.

    `states`: tasks by state. `stranded`: tasks in a state that nothing ends. `orphans`: taken tasks of a leased kind
    whose session is gone. `unsound`: tasks of an unleased kind that are not as their kind has them. `queues`: per
    micro-queue what is counted and what its row says, as (taken, heads, waiting) pairs, and its turn. `members`: per
    group number its tasks by state. `strays`: ids of tasks whose group is gone. `early`: ids of tasks that are there
    and have an outcome.
    """

    states: dict[str, int]
    stranded: list[Record]
    orphans: list[Record]
    unsound: list[Record]
    queues: dict[str, QueueAudit]
    groups: list[Group]
    members: dict[int, dict[str, int]]
    strays: list[Record]
    early: list[int]
    newest: Record | None
    counters: TubeCounters
    #: What else is wrong beside the tasks, and follows from them: id, what, remedy. `rebuild` repairs it.
    others: Sequence[tuple[int | str | None, str, str]] = ()


class QueueAudit(msgspec.Struct, frozen=True):
    """One micro-queue: (taken, heads, waiting) counted and as stored, its turn, and its ready tasks in take order."""

    counted: tuple[int, int, int]
    stored: tuple[int, int, int]
    turn: int
    ready: list[tuple[int, str]]  # id and state


class Step(Protocol):
    """One call on the database, between `Store.step` entering and leaving."""

    @property
    def now(self) -> int:
        """The clock of this step: read when it began, or at its first load on a server."""

    #: Whether a decision should first be tried without loading: a round trip costs more than a conflict.
    optimistic: bool
    #: Whether `ack` also deletes one task by its id, if that needs no rule.
    deletes: bool
    #: Whether what goes to other tubes is posted (`Delta.posts`): these may be on another server.
    posts: bool

    # tubes
    def tubes(self, names: Sequence[str] | None = None) -> list[Tube]:
        """All tubes with these names, or all of them, by name. A hidden one (dropped, importing, moved) has a name that
        nobody can give. The number of a dropped or moved one is negative, so that no statement finds it by the number
        that its tasks keep."""

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        """A new tube with its counters; None where the name is in use."""

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> None:
        """Set what is given, also of a hidden tube. Wakes takers of a resumed one."""

    def alter_tube(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        """Change its options and `Overdue.altered`, both or none. Returns the changed tube."""

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        """Rename the tube and negate its number in its row and its counters, so that no step finds it any more.

        In the same step it looks for taken tasks (delivered messages do not count unless `waiting`), for takers that
        wait, if `waiting`, and for groups that move. If there are any, nothing changes, and it returns which of the
        three were found; else None. It holds the tube's exclusive lock, so nothing comes in between.
        """

    def forget_tube(self, tube: Tube) -> None:
        """Remove an empty tube's row, counters, micro-queues, groups, outcomes and waiters."""

    def clear_tube(self, tube: Tube) -> None:
        """Remove its micro-queues, groups, outcomes and waiters, and set its counters to none stored."""

    # looking
    def load(self, tube: Tube, select: Select) -> Loaded:
        """The selected tasks, and their groups."""

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, newest: str | None = None,
        after: str | None = None, above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        """The group with a number; the live one of a name; the newest of a name, live or not; live ones by name from
        behind `after`; or those that are not over, above a number."""

    def outcomes_of(self, tube: Tube, keys: Sequence[int | str]) -> dict[int | str, Kept]:
        """How the tasks of these ids ended, or the last ones of these addresses, where that is kept: one query."""

    def outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        """Outcomes of tasks above an id, in id order."""

    def counters_of(self, tubes: Sequence[Tube]) -> dict[int, TubeCounters]:
        """Those of several tubes by number, with `waits`, in one round trip; tubes that are gone are left out."""

    def counters(self, tube: Tube) -> TubeCounters:
        """The last ids and the counters; NoSuchTube."""

    def queue(self, tube: Tube, utube: str) -> MicroQueue:
        """The numbers of a micro-queue."""

    def ahead(self, tube: Tube, record: Record) -> int:
        """How many takeable tasks come before this one; may stop at 1,000."""

    def next_at(self, tube: Tube) -> int | None:
        """The next known moment of the tube and of sessions; 0 where tasks must follow a group."""

    def overdue(self) -> tuple[list[Tube], bool, str]:
        """The tubes whose tasks, groups or outcomes are due, whether a session is, and `Overdue.altered`: one query,
        with one step in an index per tube."""

    # hot
    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        """Store tasks without address and group, in order; TubeFull where the capacity does not allow them all.

        Messages of a reliable tube get their ids here (`core.ids.next_marks`).
        """

    def take(self, request: Request) -> Handed:
        """Lease tasks, or hand them out as the kind says (`core.lifecycle`), and count them."""

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        """Hand out again the first delivered messages, up to one that is younger; none while the tube is paused."""

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """Ack those that are held as the moves say, have no errors and no reply to leave, and cannot be the last of
        their group.

        The outcome of a task with an address is kept. Groups that are started are counted down, but never to none left:
        what may be the last task of its group is left to the engine, as are tasks of other groups. In a reliable tube
        moves go by name.
        """

    def undo_lost(self, effects: Effects, *, again: bool) -> None:
        """Release what was leased by takes whose answers were lost (`engine.sessions`); with `again`, look once more
        for those that may have reached the server late."""

    # changes
    def flush(self, delta: Delta) -> Flushed:
        """Write a decision as one atomic change, keep the outcomes of rows with an ending and an address
        (for `tube.retention`), supersede those of addresses that are put again, and count all of it."""

    def open_group(self, tube: Tube, name: str) -> Group:
        """The live group of that name, created if there is none."""

    def sweep(self, tube: Tube, limit: int) -> bool:
        """Forget up to `limit` outcomes and groups past their retention, and micro-queues that are empty and had their
        turn. Returns whether more may be left."""

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        """Store tasks under their own ids, groups' numbers and outcomes from elsewhere, as `core.transfer` says."""

    def activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> bool:
        """Rename an importing tube and add the calls of the counters; False where the name is in use."""

    # sessions
    def find_session(self, *, id: str | None = None, no: int | None = None) -> SessionRow | None:
        """A session by its public id or its number."""

    def add_session(self, id: str, ttr: int) -> int:
        """Add a session. Returns its number."""

    def add_handle(self, presence: Presence, session: int, until: int) -> None:
        """Add a handle to a session, which then has no end; Conflict if the session is over."""

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        """Extend the handles that have not lapsed to `lapse_ms` from now. Returns their ids."""

    def handles(self, ids: Sequence[str]) -> list[HandleRow]:
        """The handles with these ids."""

    def lapsed(self) -> tuple[list[HandleRow], list[int]]:
        """Handles whose time is over, earliest first, and the numbers of sessions whose end has come."""

    def remove_handle(self, handle: HandleRow, moment: int) -> None:
        """Remove a handle and its waits as of that moment; the last one sets its session's end, `ttr` later."""

    def held(self, session: int, limit: int) -> list[tuple[Tube, Loaded]]:
        """What a session holds, by tube."""

    def holds(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        """Whether the session holds each of these, in one query; tasks of a cancelled group are held by nobody."""

    def forget_session(self, session: int) -> None:
        """Remove an ended session, which holds nothing any more."""

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        """Live sessions, oldest first, with what they hold and wait for; or one, without those."""

    # integrity
    def damage(self) -> list[str]:
        """What the database itself reports as damaged; nothing else can be trusted then."""

    def audit(self, tube: Tube) -> Audit:
        """The facts of one tube, at one moment."""

    def restore(self, tube: Tube, record: Record) -> None:
        """Write a task as it should be, without counting it; micro-queues are rebuilt afterwards."""

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        """Set the counters (from `audit`), the micro-queues and their heads to what the tasks say."""

    def drop_outcomes(self, tube: Tube, ids: Sequence[int]) -> None:
        """Forget outcomes of tasks that are still there."""

    def stray_waiters(self, *, forget: bool) -> list[tuple[str, str]]:
        """Waiters (tube name, handle) whose handle is gone."""
