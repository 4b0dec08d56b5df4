"""The store's contract (`store.contract.Store`) on the steps of any database: every verb is load, decide, flush.

Hot calls (a plain put, a take, an ack) go straight to statements of the database that need no rule.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TypeVar, cast

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
from penstock.core.refusals import name_in_use, partly_applied, refuse_busy, tube_exists, tube_missing
from penstock.core.reply import reply_payload
from penstock.core.results import (
    ADVANCE_STEP,
    GONE,
    Advanced,
    Blocked,
    Counts,
    Description,
    Effects,
    Event,
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
from penstock.core.select import Deliveries, Listing, Sweep
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, Kept, TubeCounters, is_hidden
from penstock.engine import due, integrity, port, puts, sessions
from penstock.engine.lapse import LAPSE_MS
from penstock.engine.lost_takes import LostTakes
from penstock.engine.port import ByIds, ByNames, Conflict, Page, Request, Step
from penstock.engine.work import Work
from penstock.errors import NoSuchTube, StoreBusy, StoreError

T = TypeVar("T")

# Tasks removed in one step by truncate and drop: short enough that others get their turn.
REMOVE_STEP = 5000
# Conflicts that one call meets before it gives up. The first retry is immediate.
_ATTEMPTS = 6
_PAUSE = 0.02


class EngineStore(ABC):
    """Keeps the contract of `store.contract`. A database adds its steps, its clock and how to wait for changes."""

    identity: str
    #: Whether a step is a round trip to a server.
    remote: bool
    #: Whether other processes can use the store.
    shared: bool
    #: Tasks removed in one step of truncate.
    remove_step = REMOVE_STEP

    def __init__(self, identity: str) -> None:
        self.identity = identity
        #: Takes of this process whose answers did not come.
        self.lost = LostTakes()

    @abstractmethod
    def step(
        self, tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1, now: int | None = None
    ) -> AbstractContextManager[Step]:
        """Begin a step on these tubes; `size`: of how many tasks, so that a batch may let others go first."""

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        return None

    @abstractmethod
    def bind(self, connection: object) -> EngineStore: ...

    @abstractmethod
    def describe(self) -> Description: ...

    @abstractmethod
    def now(self) -> int: ...

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        wake.wait(max(seconds, 0))
        return False

    @abstractmethod
    def close(self) -> None: ...

    def finish_drops(self) -> Effects:
        """Remove what is left of dropped tubes, also of those that a crash left half removed."""
        effects = Effects()
        while self._run(lambda step, _: self._remove_dropped(step, effects)):
            pass
        return effects

    def _run(
        self, call: Callable[[Step, bool], T], tubes: Sequence[Tube] = (), *, write: bool = True, size: int = 1,
        now: int | None = None,
    ) -> T:  # fmt: skip
        """One step, tried again after a conflict. The call is told whether to guess before it loads."""
        for attempt in range(_ATTEMPTS):
            try:
                with self.step(tubes, write=write, size=size, now=now) as step:
                    return call(step, attempt == 0 and step.optimistic)
            except Conflict:
                if attempt:
                    time.sleep(random.random() * _PAUSE * attempt)
        raise StoreBusy(f"{_ATTEMPTS} attempts met changes by others: try again, or spread the work over more tubes")

    def _read(self, call: Callable[[Step], T], tube: Tube | None = None, *, now: int | None = None) -> T:
        return self._run(lambda step, _: call(step), () if tube is None else (tube,), write=False, now=now)

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        def save(step: Step, _: bool) -> Tube:
            there = self._find_tube(step, name)
            if there is not None and not exist_ok:
                raise tube_exists(name)
            tube = there or step.add_tube(name, kind, given)
            if tube is None:  # another was faster
                raise Conflict
            return tube

        return self._run(save)

    def load_tubes(self, names: Sequence[str] | None = None) -> list[Tube]:
        def load(step: Step) -> list[Tube]:
            found = (self._find_tube(step, name) for name in names or ())
            return all_tubes(step) if names is None else [tube for tube in found if tube is not None]

        return self._read(load)

    def load_frozen(self) -> list[Tube]:
        return self._read(lambda step: [stored.tube for stored in step.tubes() if transfer.is_frozen(stored.tube)])

    def _find_tube(self, step: Step, name: str) -> Tube | None:
        """The tube of a name; NoSuchTube where it is on its way, here or away from here."""
        found = [stored.tube for stored in step.tubes([name, transfer.importing(name), transfer.moved(name)])]
        return transfer.named(sorted(found, key=lambda tube: tube.name != name), name)

    def drop_tube(self, tube: Tube) -> Effects:
        effects = Effects()

        def drop(step: Step, _: bool) -> None:
            self._catch_up(step, tube, effects)
            busy = step.hide_tube(tube, transfer.dropped(tube), transfer.dropped_options(tube), waiting=True)
            if busy is not None:
                refuse_busy(tube, taken=busy[0], waiting=busy[1])
                raise Conflict  # a group moves: what it moves is due

        self._run(drop, (tube,))
        effects.add(self.finish_drops())
        return effects

    def _remove_dropped(self, step: Step, effects: Effects) -> bool:
        """Remove some tasks of dropped tubes, with their replies; False when nothing is left of any."""
        for stored in step.tubes():
            tube = stored.tube
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
            step.forget_tube(tube)
        return False

    def write_tube(
        self, tube: Tube, *, paused: bool | None = None, changes: Mapping[str, object] | None = None
    ) -> Tube:
        if paused is not None:
            self._pause(tube, paused)
        if changes is None:
            return tube
        altered = self._alter(tube, changes)
        if "utube_limit" in changes:
            self._repair_queues(altered)
        return altered

    def _pause(self, tube: Tube, paused: bool) -> object:
        if not self._run(lambda step, _: step.write_tube(tube, paused=paused), (tube,)):
            raise self._missing(tube)
        return None

    def _alter(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        altered = self._run(lambda step, _: step.alter_tube(tube, changes), (tube,))
        if altered is None:
            raise self._missing(tube)
        return altered

    def _repair_queues(self, tube: Tube) -> None:
        """Give its micro-queues the heads that its limit allows."""
        self._run(lambda step, _: integrity.check_tube(step, tube, repair=True), (tube,), size=2)

    def paused(self, tube: Tube) -> bool:
        found = self._read(lambda step: step.tubes([tube.name]))
        if not found or found[0].tube.no != tube.no:
            raise self._missing(tube)
        return found[0].paused

    def _missing(self, tube: Tube) -> Exception:
        """The error for a handle whose tube was dropped or moved."""
        self._read(lambda step: self._find_tube(step, tube.name))
        return tube_missing(tube)

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        effects = Effects()
        if linked(entries):

            def put(step: Step, guess: bool) -> list[Record]:
                return puts.put_linked(Work(step, tube, effects), entries, guess=guess and self.remote)

            return Stored(self._run(put, (tube,), now=now), effects)
        put_plain = self.plain_put(tube, entries[0]) if now is None and len(entries) == 1 else None
        record = None if put_plain is None else put_plain(entries[0].payload)
        if record is not None:
            records = [record]
        else:
            records = self._run(lambda step, _: step.insert(tube, entries), (tube,), now=now)
        effects.events = [Event(tube.no, "put", record) for record in records]
        if ready := sum(record.state == "r" for record in records):
            effects.readied[tube.no] = ready
        return Stored(records, effects)

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        effects = Effects()

        def take(step: Step, _: bool) -> Taken:
            forced = 0
            while True:
                handed = step.take(Request(tubes, count, handle, max_pri, blocked, forced))
                if handed.before is not None:
                    effects.add(handed.before)
                if handed.due is None:
                    break
                self._apply_due(step, handed.due, effects)
                forced = tubes.index(handed.due) + 1
            if handed.tube is not None:
                effects.events += [Event(handed.tube.no, "take", record) for record in handed.records]
            return Taken(handed.tube, handed.records, _until(handed.next_at, step.now), handed.alive, effects)

        return self._run(take, tubes, size=count, now=now)

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        effects = Effects()
        records: list[Record | None] = [None] * len(moves)
        left: list[int] | None = list(range(len(moves))) if not (brief and _may_be_hot(moves)) else None

        def settle(step: Step, guess: bool) -> None:
            nonlocal left  # a server keeps what an attempt has written before it met a conflict
            if left is None:
                left = list(self._ack(step, tube, moves, records, effects))
            guess = guess and (self.remote or len(moves) == 1)  # a local load of many costs less than to guess again
            while left:
                left = self._settle(step, tube, moves, left, records, effects, guess=guess)
                guess = False

        self._run(settle, (tube,), size=len(moves), now=now)
        return Settled(records, effects)

    def _ack(
        self, step: Step, tube: Tube, moves: Sequence[Move], records: list[Record | None], effects: Effects
    ) -> Sequence[int]:
        """Ack without reading what can be; the places of the moves that are left."""
        acked = step.ack(tube, moves)
        if acked.beside is not None:
            effects.add(acked.beside)
        if not acked.keys:
            return () if acked.judged else range(len(moves))
        effects.removed[tube.no] = effects.removed.get(tube.no, 0) + len(acked.keys)
        if acked.readied > 0:
            effects.readied[tube.no] = acked.readied
        if acked.kept:
            effects.ended += [("task", tube.no, id) for id in acked.kept]
        if tube.kind.leased and len(acked.keys) == len(moves):
            records[:] = [GONE] * len(moves)
            return ()
        gone = {key: GONE if tube.kind.leased else replace(GONE, address=str(key)) for key in acked.keys}
        records[:] = [gone.get(move.shown) for move in moves]
        return () if acked.judged else [place for place, record in enumerate(records) if record is None]

    def _settle(
        self, step: Step, tube: Tube, moves: Sequence[Move], places: Iterable[int], records: list[Record | None],
        effects: Effects, *, guess: bool,
    ) -> list[int]:  # fmt: skip
        """Load, decide, flush, for one move of each task; the places that are left: later moves of one task, and those
        that others overtook.

        With `guess`, what the holders of all tasks know of them is not loaded; what cannot be decided by it is left.
        """
        work = Work(step, tube, effects)
        batch: dict[int | str, int] = {}
        later = [place for place in places if batch.setdefault(moves[place].shown, place) != place]
        seen = {shown: record for shown, place in batch.items() if (record := _held(moves[place]))} if guess else {}
        guess = bool(seen) and len(seen) == len(batch)
        known = seen if guess else _load_by(work, list(batch))
        after: dict[int, tuple[int, Record]] = {}
        for shown, place in batch.items():
            record = known.get(shown)
            if work.heavy:
                later.append(place)
                continue
            if record is None or work.remove_if_gone(record):
                continue
            change = lifecycle.decide(record, moves[place], work.now)
            if guess and (change is None or "ttl" in change.events):  # the database's own clock must say so
                later.append(place)
            elif change is not None:
                after[record.id] = place, work.change(record, change)
        missed, _ = work.flush()
        for id, (place, record) in after.items():
            if id in missed:
                later.append(place)
            else:
                records[place] = record
        return sorted(later)

    def sweep(self, tube: Tube, sweep: Sweep, *, now: int | None = None) -> Settled:
        if sweep.verb == "delete":
            return self._truncate(tube, now)
        if sweep.verb == "recover":
            return self._recover(tube, sweep, now)
        effects = Effects()
        settled: list[Record | None] = []

        def decide(work: Work, after: int) -> list[Record]:
            if sweep.verb == "release":
                taken = work.load(port.Taken(after, ADVANCE_STEP))
                return [work.change(record, lifecycle.came_back(record, work.now, "release")) for record in taken]
            wanted = ADVANCE_STEP if sweep.count is None else min(sweep.count - len(settled), ADVANCE_STEP)
            return [work.change(record, lifecycle.kicked(record)) for record in work.load(port.Buried(wanted))]

        def apply(step: Step, _: bool) -> None:
            self._catch_up(step, tube, effects)
            after = 0
            while True:
                work = Work(step, tube, effects)
                records = decide(work, after)
                missed, _fresh = work.flush()
                settled.extend([record for record in records if record.id not in missed])
                if len(records) < ADVANCE_STEP:
                    return
                after = records[-1].id

        self._run(apply, (tube,), now=now)
        return Settled(settled, effects)

    def _catch_up(self, step: Step, tube: Tube, effects: Effects) -> None:
        while self._apply_due(step, tube, effects):
            pass

    def _apply_due(self, step: Step, tube: Tube, effects: Effects, limit: int = ADVANCE_STEP) -> bool:
        """Do what the clock demands of sessions and of a tube; whether more may be due. What others are at, they do."""
        try:
            sessions.end_lapsed(step, effects)
            return due.advance(Work(step, tube, effects), limit)
        except Conflict:
            return False

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        effects = Effects()

        def advance(step: Step, _: bool) -> Advanced:
            more = self._apply_due(step, tube, effects, limit)
            step.sweep(tube, ADVANCE_STEP)
            return Advanced(more, _until(step.next_at(tube), step.now), effects)

        return self._run(advance, (tube,), now=now)

    def overdue(self, *, now: int | None = None) -> Overdue:
        def look(step: Step) -> Overdue:
            found, lapsed, altered = step.overdue()
            tubes = [stored.tube for stored in found if not is_hidden(stored.tube.name)]
            return Overdue(tubes or (all_tubes(step)[:1] if lapsed else []), altered, step.now)

        return self._read(look, now=now)

    def _recover(self, tube: Tube, sweep: Sweep, now: int | None) -> Settled:
        records = self._run(lambda step, _: step.recover(tube, sweep.count or 0, sweep.elapsed), (tube,), now=now)
        return Settled(list(records), Effects([Event(tube.no, "take", record) for record in records]))

    def _truncate(self, tube: Tube, now: int | None) -> Settled:
        # A task put meanwhile has a higher id than the last one at the start.
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
                more = self._run(remove, (tube,), size=2, now=now)
        return Settled(settled, effects)

    def get(self, tube: Tube, keys: Sequence[int] | Sequence[str], *, now: int | None = None) -> list[Record | None]:
        def get(step: Step) -> list[Record | None]:
            work = Work(step, tube, Effects())
            found = {key: record for key, record in _load_by(work, keys).items() if not work.is_gone(record)}
            return [found.get(key) for key in keys]

        return self._read(get, tube, now=now)

    def find(self, tube: Tube, listing: Listing, *, now: int | None = None) -> list[Record]:
        def find(step: Step) -> list[Record]:
            select = listing
            if isinstance(listing, Deliveries) and listing.start < 0:
                counts = step.counters(tube).counts
                there = counts.taken if listing.delivered else counts.ready
                select = replace(listing, start=listing.start + there, there=there)
                if select.start < 0:
                    return []
            return step.load(tube, select).records

        return self._read(find, tube, now=now)

    def count(self, tube: Tube) -> Counts:
        return self._read(lambda step: step.counters(tube).counts, tube)

    # addresses, outcomes and groups

    def outcome(self, tube: Tube, key: int | str, *, now: int | None = None) -> OutcomeLookup:
        def by_address(step: Step) -> OutcomeLookup:
            records = step.load(tube, ByNames([str(key)])).records
            return OutcomeLookup(records[0].id) if records else _sought(step.outcome(tube, address=str(key)))

        def by_id(step: Step) -> OutcomeLookup:
            id = int(key)
            kept = step.outcome(tube, id=id)
            if kept is not None:
                return _sought(kept)
            if step.load(tube, ByIds([id])).records:
                return OutcomeLookup(id)
            kept = step.outcome(tube, id=id)  # on a server it may have ended between the two looks
            return (
                _sought(kept) if kept is not None else OutcomeLookup(unknown=not 0 < id <= step.counters(tube).last_id)
            )

        return self._read(by_address if isinstance(key, str) else by_id, tube, now=now)

    def open_group(self, tube: Tube, name: str, *, on_failure: str | None = None, now: int | None = None) -> Group:
        def open_one(step: Step, _: bool) -> Group:
            if on_failure is None:
                return step.open_group(tube, name)
            if step.groups(tube, name=name):
                raise rules.is_live(name)
            work = Work(step, tube, Effects())
            group = work.know_group(step.open_group(tube, name))
            group.on_failure = on_failure
            opened = replace(group)
            work.flush()
            return opened

        return self._run(open_one, (tube,), now=now)

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, after: str = "", limit: int = 100,
        now: int | None = None,
    ) -> list[Group]:  # fmt: skip
        def read(step: Step) -> list[Group]:
            if no is None and name is None:
                return step.groups(tube, after=after, limit=limit)
            found = step.groups(tube, no=no, newest=name)
            return [group for group in found if not rules.forgotten(group, step.now)]

        return self._read(read, tube, now=now)

    def change_group(
        self, tube: Tube, no: int, *, to: str | None = None, end: bytes | None = None, cancel: bytes | None = None,
        now: int | None = None,
    ) -> Advanced | None:  # fmt: skip
        effects = Effects()

        def write(step: Step, _: bool) -> Advanced | None:
            work = Work(step, tube, effects)
            group = work.group(no)
            if group is None or group.state not in rules.LIVE:
                return None
            group.end = group.end if end is None else end
            group.cancel = group.cancel if cancel is None else cancel
            work.flush()
            return Advanced(False, None, effects)

        def turn(step: Step, _: bool) -> Advanced | None:
            if due.turn_group(Work(step, tube, effects), no, str(to)) is None:
                return None
            try:
                more = due.follow(Work(step, tube, effects), [no], ADVANCE_STEP)
            except Conflict:  # others let its tasks follow, too
                more = True
            return Advanced(more, 0 if more else None, effects)

        return self._run(write if to is None else turn, (tube,), now=now)

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int, *, now: int | None = None) -> Joined:
        return self._run(lambda step, _: sessions.join(step, presence, session, ttr), now=now)

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        alive = self._run(lambda step, _: step.beat(handles, LAPSE_MS), now=now)
        if self.lost:
            with suppress(StoreError):  # the next one does it
                self._undo_lost(Effects(), now, again=True)
        return alive

    def _undo_lost(self, effects: Effects, now: int | None, *, again: bool) -> None:
        self._run(lambda step, _: step.undo_lost(effects, again=again), now=now)

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        effects = Effects()
        self._run(lambda step, _: sessions.leave(step, handles, locus, effects), now=now)
        return effects

    def sessions(self, no: int | None = None, *, now: int | None = None) -> list[SessionRecord]:
        return self._read(lambda step: step.sessions(no), now=now)

    def held(self, session: int, leases: Sequence[Lease], *, now: int | None = None) -> list[bool]:
        return self._read(lambda step: step.holds(session, leases), now=now)

    # looking closer

    def ahead(self, tube: Tube, record: Record) -> int:
        return self._read(lambda step: step.ahead(tube, record), tube)

    def lane(self, tube: Tube, utube: str) -> Lane:
        return self._read(lambda step: step.queue(tube, utube), tube)

    def check(self, repair: bool, *, now: int | None = None) -> list[Finding]:
        found = [finding for _, finding in self._stranded(repair, now)]
        return found + self._run(lambda step, _: integrity.check(step, repair=repair), write=repair, size=2, now=now)

    def _stranded(self, repair: bool, now: int | None) -> list[tuple[Tube, Finding]]:
        """What takes of this process leased whose answers were lost, if it is not given back yet."""
        what, found = "leased by a take whose answer was lost", list[tuple[Tube, Finding]]()
        tubes = {tube.no: tube for lost in self.lost.left(again=True) for tube in lost.tubes}
        for tube in tubes.values():
            with suppress(NoSuchTube), self.step((tube,), write=False, now=now) as step:
                held = step.load(tube, port.Taken(0, ADVANCE_STEP)).records
                stranded = [record for record in held if self.lost.leased(record)]
                found += [(tube, Finding(tube.name, record.id, what, "give it back")) for record in stranded]
        if repair and found:
            self._undo_lost(Effects(), now, again=True)
        return found

    # transfer

    def freeze_tube(self, tube: Tube, to: str) -> None:
        name, given = transfer.moved(tube.name), transfer.frozen_options(tube.given, to)
        busy = self._run(lambda step, _: step.hide_tube(tube, name, given, waiting=False), (tube,))
        if busy is not None:
            raise transfer.freeze_refused(tube, busy[0])

    def erase_tube(self, tube: Tube) -> None:
        def erase(step: Step, _: bool) -> bool:
            records = step.load(tube, Page(0, REMOVE_STEP)).records
            if records:
                Work(step, tube, Effects()).flush(erase_upto=records[-1].id)
                return True
            step.clear_tube(tube)
            if transfer.is_frozen(tube):
                step.write_tube(tube, given=transfer.erased_options(tube))
            return False

        while self._run(erase, (tube,)):
            pass

    def forget_tube(self, tube: Tube) -> None:
        self._run(lambda step, _: step.forget_tube(tube), (tube,))

    def counters(self, tube: Tube) -> TubeCounters:
        return self._read(lambda step: step.counters(tube), tube)

    def read_tasks(self, tube: Tube, after: int, limit: int) -> list[Record]:
        return self._read(lambda step: step.load(tube, Page(after, limit)).records, tube)

    def read_groups(self, tube: Tube, after: int, limit: int) -> list[Group]:
        return self._read(lambda step: step.groups(tube, above=after, limit=limit), tube)

    def read_outcomes(self, tube: Tube, after: int, limit: int) -> list[Kept]:
        return self._read(lambda step: step.outcomes(tube, after, limit), tube)

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        self._run(lambda step, _: step.import_batch(tube, batch), (tube,))

    def activate_tube(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> None:
        if not self._run(lambda step, _: step.activate(tube, name, counters, totals), (tube,)):
            raise name_in_use(name)


def all_tubes(step: Step) -> list[Tube]:
    """The tubes that people see, by name."""
    return [stored.tube for stored in step.tubes() if not is_hidden(stored.tube.name)]


def _load_by(work: Work, keys: Sequence[int | str]) -> dict[int | str, Record]:
    """Tasks by their ids, or by their addresses, as the keys are."""
    if keys and isinstance(keys[0], str):
        return {record.address or "": record for record in work.load(ByNames(cast("Sequence[str]", keys)))}
    return {record.id: record for record in work.load(ByIds(cast("Sequence[int]", keys)))}


def _held(move: Move) -> Record | None:
    """The task as its holder knows it."""
    record = move.seen
    if record is None or record.attempts > 1:  # what was handed out before may have errors, which a take does not read
        return None
    return record if record.state == "t" and record.lease == move.lease else None


def _until(moment: int | None, now: int) -> int | None:
    return None if moment is None else max(0, moment - now)


def _may_be_hot(moves: Sequence[Move]) -> bool:
    """Whether these are acks of different tasks, which a database may remove without reading them."""
    if len(moves) == 1:
        return moves[0].verb == "ack"
    return {move.verb for move in moves} == {"ack"} and len({move.shown for move in moves}) == len(moves)


def _sought(kept: Kept | None) -> OutcomeLookup:
    return OutcomeLookup() if kept is None else OutcomeLookup(ending=kept.ending, last=kept.id)
