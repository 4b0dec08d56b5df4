"""The store interface that brokers use, the same on every database. Every verb is load, decide, flush, written once.

Hot calls (a plain put, a take, an ack) run database statements directly where no rule of core is needed.

Guarantees:
- Each call is one atomic step unless its docstring says otherwise. A call that raises has changed nothing, except for
  OutcomeUnknown.
- Everything is a batch; a single call is a batch of one.
- Time is the store's clock in integer milliseconds, read inside the step. A deadline has passed at `now == deadline`.
- `take` advances its tubes first, so no daemon is needed for correctness.
- A tube that was dropped or moved away raises NoSuchTube.
- The step that ends a task also stores its outcome, puts its reply and counts down its group. A group without remaining
  tasks ends in that step, and its work is put once. A reply is never refused for lack of capacity; the work of a group
  takes the place of the task that ended. Tasks of a cancelled group are treated as gone, even before their removal.

A store knows nothing of handlers, retry rules or blocked callers. It reports what became ready (Effects), and the
broker wakes its waiters.

Kinds without leases (`core.lifecycle` has their rules):
- The public id of a task is the text in `Record.address`; `Move.name` and `get` use it. `find` goes by integer id.
- A hand-out has no owner, lease number or deadline. `take` needs a live handle; the end of a session changes no task.
- `round`: a put of an id that exists changes nothing, or only the data. rank1 is the time of the last hand-out.
- `reliable`: messages are named by `core.ids.next_marks`. A delivered one is `t`; its rank1 grows with every hand-out.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TypeVar, cast, overload

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core import lifecycle, transfer
from penstock.core.address import linked
from penstock.core.chain import reply_tube
from penstock.core.ending import Ending, OutcomeLookup
from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.refusals import name_in_use, partly_applied, refuse_busy, tube_exists
from penstock.core.reply import reply_payload
from penstock.core.results import (
    ADVANCE_STEP,
    GONE,
    Advanced,
    Blocked,
    Description,
    Effects,
    Event,
    Finding,
    Joined,
    Lease,
    Overdue,
    Presence,
    SessionRecord,
    Settled,
    Stored,
    Taken,
)
from penstock.core.select import Find, Listing, Sweep
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, StoredOutcome, TubeCounters, is_hidden
from penstock.engine import integrity, port, sessions
from penstock.engine.port import Conflict, Found, Page, Step, TakeAnswer, TakeRequest
from penstock.engine.work import Work, must_have_room, put_linked
from penstock.errors import NoSuchTube, OutcomeUnknown, StoreBusy, StoreError

T = TypeVar("T")
P = TypeVar("P", Record, Group, StoredOutcome)

# Tasks removed in one step by truncate and drop: few enough that other callers are not blocked for long.
REMOVE_STEP = 5000
# Attempts of one call before it gives up because of conflicts. The first retry is immediate.
_ATTEMPTS = 6
_PAUSE = 0.02
# When to retry a take whose tasks other takers had locked.
BUSY_MS = 20


class Store(ABC):
    """Base class of all stores. A subclass adds its steps, its clock and how to wait for changes.

    Callers pass the Tube that `load_tubes` or `save_tube` returned.
    """

    #: Brokers of one process whose stores have equal identities wake each other's takers.
    identity: str
    #: Whether the store is reached over a network. Then a blocked take survives an outage.
    remote: bool
    #: Whether other processes can have sessions in this store, so that OS locks are needed to detect dead ones.
    shared: bool
    #: Tasks removed in one step of truncate.
    remove_step = REMOVE_STEP

    def __init__(self, identity: str) -> None:
        self.identity = identity
        #: Takes of this process whose answers were lost. The next take or heartbeat undoes them.
        self.lost = sessions.LostTakes()

    @abstractmethod
    def step(self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1) -> AbstractContextManager[Step]:
        """Begin a step on these tubes. `size`: the number of tasks; a large batch may let other callers go first."""

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        """Return a function that stores a payload as `put` would with this entry; None if only `put` can."""
        return None

    @abstractmethod
    def bind(self, connection: object) -> Store:
        """Return the same store inside the transaction that the caller has begun on its own connection.

        Raises UnsupportedOption if the store has no transactions or the connection belongs to another driver.
        """

    @abstractmethod
    def describe(self) -> Description:
        """Describe the store and its durability, read from its current settings. Never contains a password."""

    @abstractmethod
    def now(self) -> int:
        """The store's clock."""

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """Sleep until `wake` is set or the time is over (returns False) or, with `watch`, until another process may
        have changed something (returns True). Costs almost nothing while nothing happens."""
        wake.wait(max(seconds, 0))
        return False

    @abstractmethod
    def close(self) -> None:
        """Close the store. Only the first call does anything."""

    def _run(
        self, call: Callable[[Step, bool], T], tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1,
        done: Sequence[object] = (),
    ) -> T:  # fmt: skip
        """Run one step, and retry it after a conflict. `call` gets the step, and whether to guess before loading.

        `done`: the tasks that the step has changed so far, for `partly_applied`. A local database undoes the step.
        """
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    with self.step(tubes, write=write, size=size) as step:
                        return call(step, attempt == 0)
                except Conflict:
                    if attempt:
                        time.sleep(random.random() * _PAUSE * attempt)
            raise StoreBusy(f"{_ATTEMPTS} attempts conflicted with other clients: retry, or use more tubes")
        except StoreError:
            with partly_applied(done if self.remote else ()):
                raise

    def _read(self, call: Callable[[Step], T], tube: Tube | None = None) -> T:
        return self._run(lambda step, _: call(step), () if tube is None else (tube,), write=False)

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        """Create the tube. If it exists, return the stored one (`exist_ok`) or raise TubeExists."""

        def save(step: Step, _: bool) -> Tube:
            there = self._find_tube(step, name)
            if there is not None and not exist_ok:
                raise tube_exists(name)
            tube = there or step.add_tube(name, kind, given)
            if tube is None:  # another process was faster
                raise Conflict
            return tube

        return self._run(save)

    def load_tubes(self, names: Sequence[str] | None = None, *, frozen: bool = False) -> list[Tube]:
        """Return all tubes by name, or those with these names, or all that were moved away (`frozen`). Raises
        NoSuchTube for a name whose tube is being imported or was moved."""

        def load(step: Step) -> list[Tube]:
            if frozen:
                return [tube for tube in step.tubes() if transfer.is_frozen(tube)]
            found = (self._find_tube(step, name) for name in names or ())
            return all_tubes(step) if names is None else [tube for tube in found if tube is not None]

        return self._read(load)

    def _find_tube(self, step: Step, name: str) -> Tube | None:
        """Return the tube of that name, or None. Raises NoSuchTube if it is being imported here or was moved away."""
        found = step.tubes([name, transfer.importing(name), transfer.moved(name)])
        return transfer.named(sorted(found, key=lambda tube: tube.name != name), name)

    def drop_tube(self, tube: Tube) -> Effects:
        """Remove the tube and everything in it. Raises TubeBusy while tasks are taken or a caller is blocked in
        `take`."""
        effects = Effects()

        def drop(step: Step, _: bool) -> None:
            self._apply_all_due(step, tube, effects)
            busy = step.hide_tube(tube, transfer.dropped(tube), transfer.dropped_options(tube), waiting=True)
            if busy is not None:
                refuse_busy(tube, taken=busy[0], waiting=busy[1])
                raise Conflict  # tasks of a group are moving: apply that first

        self._run(drop, (tube,))
        effects.add(finish_drops(self))
        return effects

    def _remove_dropped(self, step: Step, effects: Effects) -> bool:
        """Remove some tasks of dropped tubes, and put their replies. Returns False if nothing remains."""
        for tube in step.tubes():
            if not transfer.is_dropped(tube):
                continue
            records = step.load(tube, Page(0, REMOVE_STEP)).records
            if records:
                work, name = Work(step, tube, effects), transfer.dropped_name(tube)
                for record in records:
                    to = reply_tube(record.reply_to)
                    if to not in (None, name):
                        work.reply(str(to), reply_payload(record, Ending("deleted")))
                work.flush(erase_upto=records[-1].id)
                return True
            step.clear_tube(tube, forget=True)
        return False

    def write_tube(
        self, tube: Tube, *, paused: bool | None = None, changes: Mapping[str, object] | None = None
    ) -> Tube:
        """Pause or resume a tube (while paused, `take` returns nothing; everything else continues), or change options
        that `core.options.check_changes` has checked. `Overdue.altered` then differs, even if no option has changed.

        Returns the changed tube. A changed utube_limit also applies to tasks that are already waiting.
        """
        if paused is not None:
            self._pause(tube, paused)
        if changes is None:
            return tube
        altered = self._alter(tube, changes)
        if "utube_limit" in changes:
            self._repair_queues(altered)
        return altered

    def _pause(self, tube: Tube, paused: bool) -> object:
        return self._run(lambda step, _: step.write_tube(tube, paused=paused), (tube,))

    def _alter(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        return self._run(lambda step, _: step.alter_tube(tube, changes), (tube,))

    def _repair_queues(self, tube: Tube) -> None:
        """Give the micro-queues of a tube as many heads as its limit allows."""
        self._run(lambda step, _: integrity.check_tube(step, tube, repair=True), (tube,), size=2)

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry]) -> Stored:
        """Store all entries in order, or raise TubeFull and store none. Does not advance the tube."""
        effects, links = Effects(), linked(entries)
        put_plain = None if links or len(entries) != 1 else self.plain_put(tube, entries[0])
        record = None if put_plain is None else put_plain(entries[0].payload)
        if record is not None:
            return Stored([record], Effects([Event(tube.no, "put", record)], {tube.no: 1}))

        # A local put loads nothing if an address in use would be an error, because then it is probably free.
        likely = links and tube.capacity is None and entries[0].duplicate == "error" and entries[0].group_no is None

        def put(step: Step, guess: bool) -> list[Record]:
            work, guess = Work(step, tube, effects), guess and (self.remote or likely)
            if links:
                return put_linked(work, entries, guess=guess)
            if self.remote and not guess:
                step.groups(tube, name="")  # raises NoSuchTube, for which a flush may have raised Conflict
            if not guess:
                must_have_room(step, tube, len(entries))
            work.put(entries)
            return work.flush()[1]

        return Stored(self._run(put, (tube,)), effects)

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, waiter: int = 0,
    ) -> Taken:  # fmt: skip
        """Advance the tubes, then lease up to `count` tasks of the first tube that has any, in its order.

        `blocked` registers a caller that waits on these tubes, so that `drop_tube` and `sessions` see it: "register"
        adds it if the take found nothing, "unregister_if_found" removes it if the take found a task, "unregister"
        always removes it. `waiter` is a number that the caller chooses, so that a repeated call registers it once.
        """
        effects = Effects()

        def take(step: Step, _: bool) -> Taken:
            forced = 0
            if self.lost:
                self.lost.undo(step, effects, again=False)
            while True:
                handed = step.take(TakeRequest(tubes, count, handle, max_pri, blocked, waiter, forced))
                if handed.due is None:
                    break
                self._apply_due(step, handed.due, effects)
                forced = tubes.index(handed.due) + 1
            return Taken(handed.tube, handed.records, _until(handed.next_at, step.now), handed.alive, effects)

        return self._run(take, tubes, size=count)

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False) -> Settled:
        """Apply each move whose guard still holds, and report which did. A stale move does not stop the others.

        `brief`: the caller needs neither the events nor the records of acked tasks; GONE may replace such a record.
        """
        effects = Effects()
        records: list[Record | None] = [None] * len(moves)
        left: list[int] | None = list(range(len(moves))) if not (brief and are_plain_acks(moves)) else None

        def settle(step: Step, guess: bool) -> None:
            nonlocal left  # on a server, what an attempt wrote before a conflict stays written
            if left is None:
                left = list(ack_plain(step, tube, moves, records, effects))
            guess = guess and (self.remote or len(moves) == 1)  # locally, loading many costs less than a wrong guess
            while left:
                left = Work(step, tube, effects).settle(moves, left, records, guess=guess)
                guess = False

        self._run(settle, (tube,), size=len(moves), done=records)
        return Settled(records, effects)

    def sweep(self, tube: Tube, sweep: Sweep) -> Settled:
        """Apply a verb to all tasks in one state, of any holder. See `core.select.Sweep`.

        Works in bounded steps, each of them atomic. Does not change tasks that are put after it has begun.
        """
        if sweep.verb == "delete":
            return self._truncate(tube)
        if sweep.verb == "recover":
            return self._recover(tube, sweep)
        effects = Effects()
        settled: list[Record | None] = []

        def apply(step: Step, _: bool) -> None:
            self._apply_all_due(step, tube, effects)
            after, kicks = 0, sweep.verb == "kick"
            decide = lifecycle.kicked if kicks else lambda record: lifecycle.came_back(record, step.now, "release")
            while True:
                work = Work(step, tube, effects)
                wanted = ADVANCE_STEP if sweep.count is None else min(sweep.count - len(settled), ADVANCE_STEP)
                records = work.load(port.Buried(wanted) if kicks else Find("t", after, wanted))
                settled.extend(work.change_each(records, decide))
                if len(records) < ADVANCE_STEP:
                    return
                after = records[-1].id

        self._run(apply, (tube,), done=settled)
        return Settled(settled, effects)

    def _apply_all_due(self, step: Step, tube: Tube, effects: Effects) -> None:
        while self._apply_due(step, tube, effects):
            pass

    def _apply_due(self, step: Step, tube: Tube, effects: Effects, limit: int = ADVANCE_STEP) -> bool:
        """End lapsed sessions and apply passed deadlines of a tube. Returns whether more remain. After a conflict, the
        process that was faster applies the rest."""
        try:
            sessions.end_lapsed(step, effects)
            return Work(step, tube, effects).advance(limit)
        except Conflict:
            return False

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP) -> Advanced:
        """Apply passed deadlines to at most `limit` tasks: end delays, leases, ttls and sessions, let tasks follow the
        state of their group, and delete old outcomes."""
        effects = Effects()

        def advance(step: Step, _: bool) -> Advanced:
            more = self._apply_due(step, tube, effects, limit)
            more = step.sweep(tube, ADVANCE_STEP) or more
            look = step.take(TakeRequest((tube,), 0, "", forced=1))  # takes nothing, but returns the next deadline
            return Advanced(more, _until(look.next_at, step.now), effects)

        return self._run(advance, (tube,))

    def overdue(self) -> Overdue:
        """Return the tubes that need `advance`; any one tube if only a session has lapsed. One query."""

        def look(step: Step) -> Overdue:
            found, lapsed, altered = step.overdue()
            tubes = [tube for tube in found if not is_hidden(tube.name)]
            return Overdue(tubes or (all_tubes(step)[:1] if lapsed else []), altered, step.now)

        return self._read(look)

    def _recover(self, tube: Tube, sweep: Sweep) -> Settled:
        records = self._run(lambda step, _: step.recover(tube, sweep.count or 0, sweep.elapsed), (tube,))
        return Settled(list(records), Effects([Event(tube.no, "take", record) for record in records]))

    def _truncate(self, tube: Tube) -> Settled:
        # Tasks put after the start have higher ids, and are kept.
        last = self._read(lambda step: step.counters(tube).last_id, tube)
        effects = Effects()
        settled: list[Record | None] = []

        def remove(step: Step, _: bool) -> bool:
            work = Work(step, tube, effects)
            records = work.load(Page(0, self.remove_step, last))
            live = [record for record in records if not work.remove_if_gone(record)]
            gone = [work.change(record, lifecycle.removed(record, "delete")) for record in live]
            missed, _fresh = work.flush()
            settled.extend(record for record in gone if record.id not in missed)
            return len(records) == self.remove_step or bool(missed)

        more = True
        while more:
            with partly_applied(settled):
                more = self._run(remove, (tube,), size=2)
        return Settled(settled, effects)

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str]) -> list[Record | None]:
        """Return the tasks with these ids (int), or addresses or public ids (str). None if missing or expired."""

        def get(step: Step) -> list[Record | None]:
            work = Work(step, tube, Effects())
            found = {key: record for key, record in work.load_by(keys).items() if not work.is_gone(record)}
            return [found.get(key) for key in keys]

        return self._read(get, tube)

    def find(self, tube: Tube, listing: Listing) -> list[Record]:
        """Return a page of tasks. See `core.select` for what can be listed."""
        return self._read(lambda step: step.load(tube, listing).records, tube)

    @overload
    def counters(self, tube: Tube, utubes: Sequence[str] = ()) -> TubeCounters: ...
    @overload
    def counters(self, tube: Sequence[Tube]) -> dict[int, TubeCounters]: ...
    def counters(
        self, tube: Tube | Sequence[Tube], utubes: Sequence[str] = ()
    ) -> TubeCounters | dict[int, TubeCounters]:
        """Return the last ids, the counters, and whether the tube is paused; also the counters of these micro-queues.

        For several tubes, returns them by tube number, with `TubeCounters.waits`, in few round trips, and omits missing
        tubes.
        """
        return self._counters(tube, utubes) if isinstance(tube, Tube) else self._counters_of(tube)

    def _counters(self, tube: Tube, utubes: Sequence[str]) -> TubeCounters:
        return self._read(lambda step: step.counters(tube, utubes), tube)

    def _counters_of(self, tubes: Sequence[Tube]) -> dict[int, TubeCounters]:
        return self._read(lambda step: step.counters_of(tubes)) if tubes else {}

    # addresses, outcomes and groups

    def outcomes(self, tube: Tube, keys: Sequence[int | str]) -> list[OutcomeLookup]:
        """Return, for each address (str), its live task or how its last task ended; by id (int), the same for addressed
        tasks."""

        def live(step: Step, keys: Sequence[int | str]) -> dict[int | str, OutcomeLookup]:
            loaded = Work(step, tube, Effects()).load_by(keys)
            return {key: OutcomeLookup(record.id) for key, record in loaded.items()}

        def ended(step: Step, keys: Sequence[int | str]) -> dict[int | str, OutcomeLookup]:
            kept = step.outcomes_of(tube, keys)
            return {key: OutcomeLookup(ending=each.ending, last=each.id) for key, each in kept.items()}

        def look(step: Step) -> list[OutcomeLookup]:
            found: dict[int | str, OutcomeLookup] = {}
            by_id = not isinstance(keys[0], str)
            # A live task of an address hides the outcome of an earlier one. A task may end between two queries.
            for search in (ended, live, ended) if by_id else (live, ended):
                if left := [key for key in keys if key not in found]:
                    found |= search(step, left)
            last = step.counters(tube).last_id if by_id and len(found) < len(keys) else 0
            return [found.get(key) or OutcomeLookup(unknown=by_id and not 0 < int(key) <= last) for key in keys]

        return self._read(look, tube) if keys else []

    def open_group(self, tube: Tube, name: str, *, on_failure: str | None = None) -> Group:
        """Return the live group of that name; create it if missing. With `on_failure`, raises BadValue if it exists."""

        def open_one(step: Step, _: bool) -> Group:
            if on_failure is None:
                return step.open_group(tube, name)
            if step.groups(tube, name=name):
                raise rules.group_exists(name)
            work = Work(step, tube, Effects())
            group = work.remember_group(step.open_group(tube, name))
            group.on_failure = on_failure
            opened = replace(group)
            work.flush()
            return opened

        return self._run(open_one, (tube,))

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, after: str = "", limit: int = 100,
    ) -> list[Group]:  # fmt: skip
        """Return up to `limit` open or started groups with names after `after`, by name; or the group numbered `no`, or
        the newest one called `name`, which may be over but not past its retention."""

        def read(step: Step) -> list[Group]:
            if no is None and name is None:
                return step.groups(tube, after=after, limit=limit)
            found = step.groups(tube, no=no, newest=name)
            return [group for group in found if not rules.forgotten(group, step.now)]

        return self._read(read, tube)

    def change_group(
        self, tube: Tube, no: int, name: str, *, to: str | None = None, end: bytes | None = None,
        cancel: bytes | None = None,
    ) -> Advanced | None:  # fmt: skip
        """Start or cancel a group (`core.group.STARTED`, `CANCELLING`) and move some of its tasks, or set the work that
        is put at its end or after its cancel. Returns None if the group has ended. Repeating either does nothing.

        Raises TubeFull if the group has no task and the tube has no capacity for its work.
        """
        effects = Effects()

        def write(step: Step, _: bool) -> Advanced | None:
            work = Work(step, tube, effects)
            group = work.group(no)
            if group is None or group.name != name or group.state not in rules.LIVE:
                return None
            group.end = group.end if end is None else end
            group.cancel = group.cancel if cancel is None else cancel
            work.flush()
            return Advanced(False, None, effects)

        def turn(step: Step, _: bool) -> Advanced | None:
            if Work(step, tube, effects).start_or_cancel(no, name, str(to)) is None:
                return None
            try:
                more = Work(step, tube, effects).update_members([no], ADVANCE_STEP)
            except Conflict:  # another client moves its tasks, too
                more = True
            except StoreError as error:
                raise OutcomeUnknown(f"group {name} may or may not be {to} ({error}): check before retrying") from error
            return Advanced(more, 0 if more else None, effects)

        return self._run(write if to is None else turn, (tube,))

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int) -> Joined:
        """Begin a session, or join the live one with that id. Raises NotFound if it is unknown or has lapsed."""
        return self._run(lambda step, _: step.join(presence, session, ttr))

    def beat(self, handles: Sequence[str]) -> set[str]:
        """Send the heartbeat of these handles. Returns those still valid; the sessions of the others have ended."""
        alive = self._run(lambda step, _: step.beat(handles))
        if self.lost:
            with suppress(StoreError):  # the next heartbeat retries
                self._undo_lost(Effects(), again=True)
        return alive

    def _undo_lost(self, effects: Effects, *, again: bool) -> None:
        tubes = [tube for lost in self.lost.pending(again=again) for tube in lost.tubes]
        if tubes:
            self._run(lambda step, _: self.lost.undo(step, effects, again=again), tubes)

    def leave(self, handles: Sequence[str], *, locus: str | None = None) -> Effects:
        """End these handles. The last handle of a session ends it: its tasks are released, after its ttr if it has one.

        With `locus`, ends only handles with that locus: a peer may report only dead processes of its own host.
        """
        effects = Effects()
        self._run(lambda step, _: sessions.leave(step, handles, locus, effects))
        return effects

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        """Return the live sessions, oldest first; or only session `no`, without `held` and `waits`."""
        return self._read(lambda step: step.sessions(no))

    def held(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        """Return whether the session holds each of these leases, in one round trip for all tubes."""
        return self._read(lambda step: step.holds(session, leases))

    # inspection

    def ahead(self, tube: Tube, record: Record) -> int:
        """Count the takeable tasks before this one; may stop at 1,000."""
        return self._read(lambda step: step.ahead(tube, record), tube)

    def check(self, repair: bool) -> list[Finding]:
        """Cross-check everything stored. With `repair`, repair what is wrong."""

        def check(step: Step, _: bool) -> list[Finding]:
            return [found for tube in all_tubes(step) for found in integrity.check_tube(step, tube, repair=repair)]

        stranded = [finding for _, finding in self._stranded(repair)]
        return stranded + self._run(check, write=repair, size=2)

    def _stranded(self, repair: bool) -> list[tuple[Tube, Finding]]:
        """Find tasks leased by takes of this process whose answers were lost, and that are not released yet."""
        what, found = "leased by a take whose answer was lost", list[tuple[Tube, Finding]]()
        tubes = {tube.no: tube for lost in self.lost.pending(again=True) for tube in lost.tubes}
        for tube in tubes.values():
            with suppress(NoSuchTube), self.step((tube,), write=False) as step:
                held = step.load(tube, Find("t", 0, ADVANCE_STEP)).records
                stranded = [record for record in held if self.lost.leased(record)]
                found += [(tube, Finding(tube.name, record.id, what, "release it")) for record in stranded]
        if repair and found:
            self._undo_lost(Effects(), again=True)
        return found

    # Moving a tube to another store, export, import. A tube is imported under a name that users cannot choose
    # (`importing`), so that no taker finds it; one step then gives it its real name. A tube that moves away is frozen:
    # one step renames it (`moved`), no handle finds it any more, and nothing in it changes again. The frozen row stays
    # when its tasks are erased, and records where the tube went. `read_page` and `counters` also work on a frozen tube.
    # Each call may be repeated after a crash.

    def freeze_tube(self, tube: Tube, to: str) -> None:
        """Hide the tube. Opening it then raises NoSuchTube, which names `to`. Raises TubeBusy while a task is leased or
        tasks of a group are moving."""
        name, given = transfer.moved(tube.name), transfer.frozen_options(tube.given, to)
        busy = self._run(lambda step, _: step.hide_tube(tube, name, given, waiting=False), (tube,))
        if busy is not None:
            raise transfer.freeze_refused(tube, busy[0])

    def erase_tube(self, tube: Tube, *, forget: bool = False) -> None:
        """Remove everything in a frozen or importing tube, in bounded steps, without outcomes and replies.

        The row of a frozen tube stays, and is finally marked as erased (`is_erased`). With `forget` the row is deleted,
        too, so that the name is free again and the record of where the tube went is lost.
        """

        def erase(step: Step, _: bool) -> bool:
            records = step.load(tube, Page(0, REMOVE_STEP)).records
            if records:
                Work(step, tube, Effects()).flush(erase_upto=records[-1].id)
                return True
            step.clear_tube(tube, forget=forget)
            if transfer.is_frozen(tube) and not forget:
                step.write_tube(tube, given=transfer.erased_options(tube))
            return False

        while self._run(erase, (tube,)):
            pass

    def read_page(self, tube: Tube, what: type[P], after: int, limit: int) -> list[P]:
        """Return up to `limit` tasks (Record), groups that are not over (Group) or outcomes (StoredOutcome), as stored,
        with an id or group number above `after`, in order."""
        readers: dict[type, Callable[[Step], object]] = {
            Record: lambda step: step.load(tube, Page(after, limit)).records,
            Group: lambda step: step.groups(tube, above=after, limit=limit),
            StoredOutcome: lambda step: step.outcomes(tube, after, limit),
        }
        return cast("list[P]", self._read(readers[what], tube))

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        """Store data of another store, with tasks under their own ids. Skips tasks up to the last id, which are stored.

        Ids up to `upto` without a task count as put and done. Nothing else is counted, and no waiter is woken.
        """
        self._run(lambda step, _: step.import_batch(tube, batch), (tube,))

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        """Give an importing tube its name. Raises TubeExists if the name is in use.

        The same step adds the call counters, and sets the last message id and the totals of its groups.
        """
        if not self._run(lambda step, _: step.activate(tube, name, counters, totals), (tube,)):
            raise name_in_use(name)


def load_tube(store: Store, name: str) -> Tube | None:
    """Return the stored tube of that name, or None."""
    return next(iter(store.load_tubes([name])), None)


def finish_drops(store: Store) -> Effects:
    """Remove the remains of dropped tubes, including those whose removal a crash interrupted."""
    effects = Effects()
    while store._run(lambda step, _: store._remove_dropped(step, effects)):
        pass
    return effects


def all_tubes(step: Step) -> list[Tube]:
    """Return the tubes that users see, by name."""
    return [tube for tube in step.tubes() if not is_hidden(tube.name)]


def _until(moment: int | None, now: int) -> int | None:
    return None if moment is None else max(0, moment - now)


def first_found(request: TakeRequest, found: Iterable[Found]) -> TakeAnswer:
    """Combine what a take finds in each of its tubes, in order, into its result. Reads `found` up to the first tube
    with tasks."""
    nexts: list[int] = []
    handed = TakeAnswer()
    for place, (tube, here) in enumerate(zip(request.tubes, found, strict=True)):
        if here.next_at is not None:
            if here.next_at > here.clock:
                nexts.append(here.next_at)
            elif place >= request.forced:
                return TakeAnswer(due=tube)
            else:
                nexts.append(here.clock + here.retry_ms)
        if here.session is None:
            handed.alive = False
            break
        if here.records:
            handed.tube, handed.records = tube, here.records
            break
        if here.rank is not None:
            wait = lifecycle.round_wait_ms(tube, here.rank, here.clock)
            nexts.append(here.clock + (BUSY_MS if wait is None else wait))
    handed.next_at = min(nexts, default=None)
    return handed


def are_plain_acks(moves: Sequence[Move]) -> bool:
    """Return whether these are acks of different tasks, or one delete by id, so that no task needs to be loaded."""
    if len(moves) == 1:
        move = moves[0]
        return move.verb == "ack" or (move.verb == "delete" and move.lease is None and move.name is None)
    keys = {move.shown for move in moves if move.verb == "ack"}
    return len(keys) == len(moves) > 0


def ack_plain(
    step: Step, tube: Tube, moves: Sequence[Move], records: list[Record | None], effects: Effects
) -> Sequence[int]:
    """Ack the tasks that need no rule of core, without loading them. Returns the indexes of the remaining moves."""
    acked = step.ack(tube, moves)
    if acked.effects is not None:
        effects.add(acked.effects)
    if not acked.keys:
        return () if acked.final else range(len(moves))
    no = tube.public_no
    effects.removed[no] = effects.removed.get(no, 0) + len(acked.keys)
    if acked.readied > 0:
        effects.readied[no] = acked.readied
    if acked.kept:
        effects.ended += [("task", no, tube.public_id(id)) for id in acked.kept]
    if not tube.kind.leased:
        records[:] = [replace(GONE, address=move.name) if move.name in acked.keys else None for move in moves]
    elif len(acked.keys) == len(moves):
        records[:] = [GONE] * len(moves)
        return ()
    else:
        records[:] = [GONE if move.id in acked.keys else None for move in moves]
    return () if acked.final else [place for place, record in enumerate(records) if record is None]
